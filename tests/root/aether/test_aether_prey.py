"""A child of PID 1 on its way in: watched as closely as the sandbox can, it shows nothing and believes nothing."""

from __future__ import annotations

from conversation import Conversation
from rig import BY_DESCRIPTORS

pytestmark = BY_DESCRIPTORS

# for every process that appears: what its descriptors are, and whether its memory can be opened for writing, as long
# as its program is still PID 1's
HUNTER = r"""
use strict;
sub ours { open(my $comm, '<', "$_[0]/comm") or return 0; return (readline($comm) // '') =~ /^aether/; }
my $end = time() + 3;
open(my $log, '>', '/tmp/prey') or die;
print $log "hunting\n";
while (time() < $end) {
    for my $dir (glob '/proc/[0-9]*') {
        next if $dir eq "/proc/$$" or $dir eq '/proc/1' or !ours($dir);
        print $log "seen\n";
        my @found;
        push @found, 'memory' if open(my $memory, '+<', "$dir/mem");
        push @found, 'environment' if open(my $environment, '<', "$dir/environ");
        for my $fd (glob "$dir/fd/*") {
            my $what = readlink($fd);
            push @found, "descriptor $what" if defined($what);
        }
        # what was found may be of the program that it has become meanwhile
        print $log "$_\n" for ours($dir) ? @found : ();
    }
}
"""


HUNTS = 15
"""A child is there for less than a millisecond: on a busy machine one hunt may see none."""


def test_nothing_is_found_on_a_child_before_its_program(talk: Conversation) -> None:
    talk.file("write", "/tmp/hunter", HUNTER.encode())
    found = {"hunting"}
    for _ in range(HUNTS):
        hunt = talk.start_exec(["/usr/bin/perl", "/tmp/hunter"])
        while not hunt.over:
            talk.finish(talk.start_exec("true"))
            talk.file("stat", "/")
        assert (hunt.how(), hunt.stderr) == (("exited", 0, None), b"")
        found |= set(talk.file("read", "/tmp/prey").stdout.decode().splitlines())
        if found != {"hunting"}:
            break
    assert found == {"hunting", "seen"}


def test_frames_on_stdout_are_only_output(talk: Conversation) -> None:
    call = talk.exec(r"printf '\002\000\000\000\003\000\000\000\350\003\000\000\000\000\000\000\201\240'; exit 9")
    assert (call.how(), call.answer["stdout"]["total"]) == (("exited", 9, None), 18)


def test_replaced_shells_are_only_the_sandboxs_own(talk: Conversation) -> None:
    talk.exec(
        "cp /bin/dash /bin/dash.kept; ln -sf /bin/false /tmp/false; rm /bin/sh /bin/bash; ln -s /bin/false /bin/sh"
    )
    try:
        assert talk.exec("true").how() == ("exited", 1, None)
        assert talk.file("read", "/etc/hostname").error is None or talk.file("stat", "/etc").error is None
        assert talk.exec(["/bin/dash.kept", "-c", "exit 4"]).how() == ("exited", 4, None)
    finally:
        talk.exec(["/bin/dash.kept", "-c", "rm /bin/sh; ln -s dash.kept /bin/sh"])


def test_a_hostile_passwd_is_only_no_user(talk: Conversation) -> None:
    talk.exec("mv /etc/passwd /etc/passwd.kept; mkfifo /etc/passwd")
    try:
        assert talk.exec("id -u", user="root").stdout == b"0\n"
        assert talk.exec("true", user="daemon").error is not None
        talk.exec("rm /etc/passwd; ln -s /dev/zero /etc/passwd")
        assert talk.exec("true", user="daemon").error is not None
        talk.exec("rm /etc/passwd; head -c 20000000 /dev/zero | tr '\\0' : >/etc/passwd")
        assert talk.exec("true", user="daemon").error is not None
        talk.exec("rm /etc/passwd; printf 'daemon:x:4294967296:1:::\\ndaemon:x:-1:1::/:\\n' >/etc/passwd")
        assert talk.exec("true", user="daemon").error is not None
    finally:
        talk.exec("rm -f /etc/passwd; mv /etc/passwd.kept /etc/passwd")
