//! The head of a response as it is stored, before its body.

use super::semantics;
use crate::codec;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// A response as it is stored and shared: the end-to-end head, the age with which it came, the body.
pub(super) struct Stored {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) age: u32,
    pub(super) body: Bytes,
}

#[derive(bincode::Encode, bincode::BorrowDecode)]
struct Head<'a> {
    status: u16,
    age: u32,
    fields: Vec<(&'a str, &'a [u8])>,
}

/// `None` if it does not encode, which no head that hyper accepts does.
pub(super) fn encode(status: StatusCode, headers: &HeaderMap) -> Option<Vec<u8>> {
    let kept = semantics::end_to_end(headers);
    let fields = kept.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let head = Head { status: status.as_u16(), age: semantics::age(headers), fields };
    bincode::encode_to_vec(head, codec::bincode_config()).ok()
}

/// Field values and body are slices of the payload: nothing but names is copied.
pub(super) fn decode(payload: &Bytes) -> Option<Stored> {
    let (head, read): (Head<'_>, usize) = bincode::borrow_decode_from_slice(payload, codec::bincode_config()).ok()?;
    let mut headers = HeaderMap::with_capacity(head.fields.len());
    for (name, value) in head.fields {
        let value = HeaderValue::from_maybe_shared(payload.slice_ref(value)).ok()?;
        headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, value);
    }
    let status = StatusCode::from_u16(head.status).ok()?;
    Some(Stored { status, headers, age: head.age, body: payload.slice(read..) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_replayed_without_copies() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>"));
        headers.append("link", HeaderValue::from_static("<b>"));
        headers.insert("x-bytes", HeaderValue::from_bytes(b"caf\xc3\xa9").expect("a value"));
        headers.insert("age", HeaderValue::from_static("7"));
        let mut payload = encode(StatusCode::NOT_FOUND, &headers).expect("encodes");
        payload.extend_from_slice(b"body");
        let payload = Bytes::from(payload);
        let stored = decode(&payload).expect("decodes");
        headers.remove("age");
        assert_eq!((stored.status, stored.age, &stored.headers), (StatusCode::NOT_FOUND, 7, &headers));
        assert_eq!(stored.body, "body");
        assert!(payload.as_ptr_range().contains(&stored.headers["x-bytes"].as_bytes().as_ptr()));
        assert!(payload.as_ptr_range().contains(&stored.body.as_ptr()));
    }

    #[test]
    fn garbage_does_not_decode() {
        for garbage in [&b""[..], b"\xff\xff\xff", b"\xfb\xff\xff\x00\xfd\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert!(decode(&Bytes::from_static(garbage)).is_none());
        }
    }
}
