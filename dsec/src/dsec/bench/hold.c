/* Holds memory and waits: hold KIND MEGABYTES PATH [IGNORED...]
 *
 * random   anonymous, does not compress
 * records  anonymous, each page a little that is its own and a line again and again: compresses about 20 : 1
 * file     a file at PATH, written, on the disk, and mapped
 *
 * Prints "ready" once all is there. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, OWN = 64 };

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void fill_random(unsigned char *to, size_t length)
{
    for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
        uint64_t word = draw();
        memcpy(to + at, &word, sizeof word);
    }
}

static void fill_record(unsigned char *page)
{
    static const char line[] = "this line stands here as often as there is room for it, unchanged\n";
    fill_random(page, OWN);
    for (size_t at = OWN; at < PAGE; at++)
        page[at] = (unsigned char)line[(at - OWN) % (sizeof line - 1)];
}

static int fail(const char *what)
{
    perror(what);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    size_t size = strtoull(argv[2], NULL, 10) << 20;
    int in_file = !strcmp(argv[1], "file"), descriptor = -1;
    if (in_file) {
        descriptor = open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (descriptor < 0 || ftruncate(descriptor, (off_t)size))
            return fail(argv[3]);
    }
    int flags = in_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *held = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (held == MAP_FAILED)
        return fail("mmap");
    int records = !strcmp(argv[1], "records");
    for (size_t at = 0; at < size; at += PAGE) {
        if (records)
            fill_record(held + at);
        else
            fill_random(held + at, PAGE);
    }
    if (in_file && fsync(descriptor))
        return fail("fsync");
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
