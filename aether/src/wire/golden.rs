//! The golden frames: their bytes are read into what is described and written back the same. The Python twin of this
//! test is `tests/unit/protocol/test_golden.py`.

#![allow(clippy::unwrap_used)]

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{pack, unpack, ErrorBody, Frame, Hello, Kind, HEADER_SIZE};

const BYTES: &[u8] = include_bytes!("../../../tests/golden/frames.bin");
const DESCRIBED: &str = include_str!("../../../tests/golden/frames.json");

#[derive(Deserialize)]
struct Described {
    kind: String,
    call: u64,
    stream: u16,
    end: bool,
    payload: Value,
}

fn described() -> Vec<Described> {
    serde_json::from_str(DESCRIBED).unwrap()
}

/// Each golden frame's packet.
fn packets() -> Vec<&'static [u8]> {
    let mut rest = BYTES;
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
        let (packet, more) = rest.split_at(HEADER_SIZE + length);
        packets.push(packet);
        rest = more;
    }
    packets
}

fn payload(described: &Value) -> Vec<u8> {
    if let Some(message) = described.get("message") {
        return pack(message).unwrap();
    }
    if let Some(credit) = described.get("credit").and_then(Value::as_u64) {
        return u32::try_from(credit).unwrap().to_le_bytes().to_vec();
    }
    if let Some(count) = described.get("count").and_then(Value::as_u64) {
        return vec![described["byte"].as_u64().unwrap() as u8; count as usize];
    }
    let hex = described["hex"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn kind(name: &str) -> Kind {
    use Kind::{Ack, Call, Cancel, Credit, Data, Error, Event, Hello, Result};
    let kinds = [Hello, Call, Result, Error, Data, Event, Credit, Cancel, Ack];
    kinds.into_iter().find(|kind| format!("{kind:?}").to_uppercase() == name).unwrap()
}

#[test]
fn bytes_are_read_and_written_as_described() {
    let (described, packets) = (described(), packets());
    assert_eq!(described.len(), packets.len());
    for (wanted, packet) in described.iter().zip(packets) {
        let frame = Frame {
            kind: kind(&wanted.kind),
            end: wanted.end,
            stream: wanted.stream,
            call: wanted.call,
            payload: payload(&wanted.payload),
        };
        assert!(Frame::decode(packet).as_ref() == Ok(&frame), "{} {}", wanted.kind, wanted.call);
        assert!(frame.encode().as_deref() == Ok(packet), "{} {}", wanted.kind, wanted.call);
        if frame.kind == Kind::Credit {
            assert_eq!(frame.credit_amount().map(u64::from).ok(), wanted.payload["credit"].as_u64());
        }
    }
}

fn through<T: Serialize + DeserializeOwned>(payload: &[u8]) -> Vec<u8> {
    pack(&unpack::<T>(payload).unwrap()).unwrap()
}

#[test]
fn messages_are_read_and_written_by_their_types() {
    for (wanted, packet) in described().iter().zip(packets()) {
        let frame = Frame::decode(packet).unwrap();
        match wanted.payload.get("type").and_then(Value::as_str) {
            Some("Hello") => assert_eq!(through::<Hello>(&frame.payload), frame.payload),
            Some("ErrorBody") => assert_eq!(through::<ErrorBody>(&frame.payload), frame.payload),
            Some("Call") => {
                assert_eq!(
                    frame.head().ok().map(|head| head.method).as_deref(),
                    wanted.payload["message"]["method"].as_str()
                );
                assert_eq!(frame.args::<Value>().unwrap(), wanted.payload["message"]["args"]);
            }
            _ => {}
        }
    }
}

#[test]
fn what_is_no_frame_is_refused() {
    let mut bad_kind = BYTES[..HEADER_SIZE].to_vec();
    bad_kind[4] = 0;
    let mut bad_flags = BYTES[..HEADER_SIZE].to_vec();
    bad_flags[5] = 2;
    for packet in [&[][..], &BYTES[..15], &BYTES[..17], &bad_kind, &bad_flags, &[0xff; 16]] {
        assert!(Frame::decode(packet).is_err(), "{packet:?}");
    }
    let over = Frame::data(1, 2, vec![0; super::MAX_PAYLOAD + 1], false);
    assert!(over.encode().is_err());
}
