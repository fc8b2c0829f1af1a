//! The framing of every conversation of ours, without I/O, and the messages that both halves of this crate speak.
//!
//! A frame is a 16-byte header (little-endian `u32 length`, `u8 kind`, `u8 flags`, `u16 stream`, `u64 call`) and
//! `length` bytes of payload. On a SOCK_SEQPACKET socket one packet is exactly one frame. Control payloads are
//! MessagePack maps with string keys. The contract is `docs/wire.md`, the Python twin is `libdsec.protocol.frames`,
//! and `tests/golden/` holds the two together.

#[cfg(test)]
mod golden;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Raised when existing bytes change their meaning; additions do not raise it.
pub const GENERATION: u32 = 1;
/// The largest payload of one frame, of any kind.
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// What a sender puts into one DATA frame at most.
pub const DATA_CHUNK: usize = 64 * 1024;
/// Bytes a sender may have in flight on one stream of one call before it needs CREDIT.
pub const WINDOW: usize = 256 * 1024;
pub const HEADER_SIZE: usize = 16;

pub const STDIN: u16 = 1;
pub const STDOUT: u16 = 2;
pub const STDERR: u16 = 3;

const FLAG_END: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Call = 2,
    Result = 3,
    Error = 4,
    Data = 5,
    Event = 6,
    Credit = 7,
    Cancel = 8,
    Ack = 9,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Call,
            3 => Self::Result,
            4 => Self::Error,
            5 => Self::Data,
            6 => Self::Event,
            7 => Self::Credit,
            8 => Self::Cancel,
            9 => Self::Ack,
            _ => return None,
        })
    }
}

/// The peer (or we) broke the framing; the connection cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError(pub String);

impl fmt::Display for WireError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for WireError {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    /// The last frame of its stream.
    pub end: bool,
    pub stream: u16,
    pub call: u64,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn new(kind: Kind, call: u64, payload: Vec<u8>) -> Self {
        Self { kind, end: false, stream: 0, call, payload }
    }

    /// A control frame whose payload is `message` as a map.
    pub fn message<T: Serialize>(kind: Kind, call: u64, message: &T) -> Result<Self, WireError> {
        Ok(Self::new(kind, call, pack(message)?))
    }

    pub fn data(call: u64, stream: u16, payload: Vec<u8>, end: bool) -> Self {
        Self { kind: Kind::Data, end, stream, call, payload }
    }

    pub fn credit(call: u64, stream: u16, amount: u32) -> Self {
        Self { kind: Kind::Credit, end: false, stream, call, payload: amount.to_le_bytes().to_vec() }
    }

    /// The packet of this frame.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        if self.payload.len() > MAX_PAYLOAD {
            let size = self.payload.len();
            return Err(WireError(format!("cannot send a frame of {size} bytes: the limit is {MAX_PAYLOAD}")));
        }
        let mut packet = Vec::with_capacity(HEADER_SIZE + self.payload.len());
        packet.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        packet.push(self.kind as u8);
        packet.push(if self.end { FLAG_END } else { 0 });
        packet.extend_from_slice(&self.stream.to_le_bytes());
        packet.extend_from_slice(&self.call.to_le_bytes());
        packet.extend_from_slice(&self.payload);
        Ok(packet)
    }

    /// The frame in one packet.
    pub fn decode(packet: &[u8]) -> Result<Self, WireError> {
        let &[l0, l1, l2, l3, kind, flags, s0, s1, c0, c1, c2, c3, c4, c5, c6, c7, ref payload @ ..] = packet else {
            return Err(WireError(format!("cannot read a frame: {} bytes are less than a header", packet.len())));
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let Some(kind) = Kind::from_number(kind) else {
            return Err(WireError(format!("cannot read a frame of unknown kind {kind}")));
        };
        if length > MAX_PAYLOAD {
            return Err(WireError(format!("cannot read a frame of {length} bytes: the limit is {MAX_PAYLOAD}")));
        }
        if flags & !FLAG_END != 0 {
            return Err(WireError(format!("cannot read a frame with unknown flags {flags:#x}")));
        }
        if payload.len() != length {
            return Err(WireError("cannot read a frame: the packet's size is not the frame's".into()));
        }
        Ok(Self {
            kind,
            end: flags & FLAG_END != 0,
            stream: u16::from_le_bytes([s0, s1]),
            call: u64::from_le_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            payload: payload.to_vec(),
        })
    }

    /// The payload of a control frame.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, WireError> {
        unpack(&self.payload)
    }

    /// The amount of a CREDIT frame.
    pub fn credit_amount(&self) -> Result<u32, WireError> {
        match self.payload.as_slice() {
            &[a, b, c, d] => Ok(u32::from_le_bytes([a, b, c, d])),
            _ => Err(WireError("cannot read a CREDIT frame: its payload is not 4 bytes".into())),
        }
    }

    /// What a CALL frame says beside its args, which are read by `args` once the method has said what they are.
    pub fn head(&self) -> Result<Head, WireError> {
        self.read()
    }

    /// The args of a CALL frame.
    pub fn args<T: DeserializeOwned>(&self) -> Result<T, WireError> {
        Ok(self.read::<Args<T>>()?.args)
    }
}

/// A message as a MessagePack map with string keys.
pub fn pack<T: Serialize + ?Sized>(message: &T) -> Result<Vec<u8>, WireError> {
    rmp_serde::to_vec_named(message).map_err(|error| WireError(format!("cannot write a message: {error}")))
}

/// A message out of a MessagePack map; keys it does not know are ignored.
pub fn unpack<T: DeserializeOwned>(payload: &[u8]) -> Result<T, WireError> {
    rmp_serde::from_slice(payload).map_err(|error| WireError(format!("cannot read a message: {error}")))
}

#[derive(Deserialize)]
pub struct Head {
    pub method: String,
    /// The edge's own name for the call, not read here.
    #[serde(default)]
    pub tag: Option<String>,
}

#[derive(Deserialize)]
struct Args<T> {
    args: T,
}

/// The first frame in each direction, on call 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub generation: u32,
    pub role: String,
    #[serde(default)]
    pub epoch: String,
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub max_payload: u64,
}

impl Hello {
    pub fn ours(role: &str) -> Self {
        Self {
            generation: GENERATION,
            role: role.into(),
            epoch: String::new(),
            version: env!("CARGO_PKG_VERSION").into(),
            max_payload: MAX_PAYLOAD as u64,
        }
    }
}

/// `{}`: no arguments, or nothing to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A value of an error's details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Detail {
    Int(i64),
    Text(String),
}

impl From<i32> for Detail {
    fn from(value: i32) -> Self {
        Self::Int(value.into())
    }
}

impl From<i64> for Detail {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Detail {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

/// An answer instead of a result; `code` is one of `libdsec.protocol.errors`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: String,
    pub message: String,
    #[serde(default)]
    pub details: BTreeMap<String, Detail>,
}

impl ErrorBody {
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), details: BTreeMap::new() }
    }

    pub fn with(mut self, key: &str, value: impl Into<Detail>) -> Self {
        self.details.insert(key.into(), value.into());
        self
    }
}
