//! The head of a response as it is stored, before its body.

use super::semantics;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// A response as it is stored and shared: the end-to-end head, the age with which it came, the body.
pub(super) struct Stored {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) age: u32,
    pub(super) body: Bytes,
}

/// `None` if it does not encode, which no head that hyper accepts does.
pub(super) fn encode(status: StatusCode, headers: &HeaderMap) -> Option<Vec<u8>> {
    let kept = semantics::end_to_end(headers);
    let fields: Vec<_> = kept.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let head = (status.as_u16(), semantics::age(headers), fields);
    bincode::encode_to_vec(head, bincode::config::standard()).ok()
}

/// Field values and body are slices of the payload: nothing but names is copied. Field by field, so that neither the
/// number that a payload claims is allocated, nor more than a `HeaderMap` can hold is a panic.
pub(super) fn decode(payload: &Bytes) -> Option<Stored> {
    let mut rest = &payload[..];
    let (status, age, fields): (u16, u32, usize) = next(&mut rest)?;
    let mut headers = HeaderMap::with_capacity(fields.min(USUAL_FIELDS));
    for _ in 0..fields {
        let (name, value): (&str, &[u8]) = next(&mut rest)?;
        let value = HeaderValue::from_maybe_shared(payload.slice_ref(value)).ok()?;
        headers.try_append(HeaderName::from_bytes(name.as_bytes()).ok()?, value).ok()?;
    }
    Some(Stored { status: StatusCode::from_u16(status).ok()?, headers, age, body: payload.slice_ref(rest) })
}

fn next<'a, T: bincode::BorrowDecode<'a, ()>>(rest: &mut &'a [u8]) -> Option<T> {
    let (part, read) = bincode::borrow_decode_from_slice(rest, bincode::config::standard()).ok()?;
    *rest = &rest[read..];
    Some(part)
}

/// Room for these is made beforehand.
const USUAL_FIELDS: usize = 24;

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

    /// With room made for as many fields as there are, this was a panic.
    #[test]
    fn more_fields_than_a_map_holds_are_no_panic() {
        let fields = vec![("link", &b"<a>"[..]); 40_000];
        let payload = bincode::encode_to_vec((200_u16, 0_u32, fields), bincode::config::standard()).expect("encodes");
        assert_eq!(decode(&payload.into()).expect("decodes").headers.len(), 40_000);
        let names: Vec<_> = (0..40_000).map(|n| format!("x-{n}")).collect();
        let fields: Vec<_> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
        let payload = bincode::encode_to_vec((200_u16, 0_u32, fields), bincode::config::standard()).expect("encodes");
        assert!(decode(&payload.into()).is_none());
    }

    #[test]
    fn garbage_does_not_decode() {
        for garbage in [&b""[..], b"\xff\xff\xff", b"\xfb\xff\xff\x00\xfd\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert!(decode(&Bytes::from_static(garbage)).is_none());
        }
    }
}
