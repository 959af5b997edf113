//! The head of a response as it is stored, before its body.

use super::{
    semantics::{fields, reuse::Facts, storing::Open},
    status::CACHE_STATUS,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::time::Duration;

/// A response as it is stored and shared: the end-to-end head, what has been derived from it, the body.
pub(super) struct Stored {
    pub(super) status: StatusCode,
    /// With room for what each answer says anew: an empty `Age` and an empty `Cache-Status`, since a map that grows is
    /// copied once more.
    pub(super) headers: HeaderMap,
    /// The age with which it came.
    pub(super) age: Duration,
    pub(super) facts: Facts,
    pub(super) body: Bytes,
}

/// `None` if it does not encode, which no head that hyper accepts does.
pub(super) fn encode(status: StatusCode, headers: &HeaderMap, age: Duration, facts: Facts) -> Option<Vec<u8>> {
    let kept = fields::end_to_end(headers);
    let fields: Vec<_> = kept.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let Facts { open, never_stale, immutable, lifetime } = facts;
    let facts = (open as u8, never_stale, immutable, lifetime.map(millis));
    let head = (status.as_u16(), millis(age), facts, fields);
    bincode::encode_to_vec(head, bincode::config::standard()).ok()
}

/// Field values and body are slices of the payload: nothing but names is copied. Field by field, so that neither the
/// number that a payload claims is allocated, nor more than a `HeaderMap` can hold is a panic.
pub(super) fn decode(payload: &Bytes) -> Option<Stored> {
    let mut rest = &payload[..];
    let (status, age) = next::<(u16, u64)>(&mut rest)?;
    let (open, never_stale, immutable, lifetime) = next::<(u8, bool, bool, Option<u64>)>(&mut rest)?;
    let open = [Open::Default, Open::Authorization, Open::Public].into_iter().find(|known| *known as u8 == open)?;
    let facts = Facts { open, never_stale, immutable, lifetime: lifetime.map(Duration::from_millis) };
    let fields: usize = next(&mut rest)?;
    let mut headers = HeaderMap::with_capacity(fields.min(USUAL_FIELDS));
    for _ in 0..fields {
        let (name, value): (&str, &[u8]) = next(&mut rest)?;
        let value = HeaderValue::from_maybe_shared(payload.slice_ref(value)).ok()?;
        headers.try_append(HeaderName::from_bytes(name.as_bytes()).ok()?, value).ok()?;
    }
    for said_anew in [header::AGE, CACHE_STATUS] {
        headers.try_insert(said_anew, HeaderValue::from_static("")).ok()?;
    }
    let (status, age) = (StatusCode::from_u16(status).ok()?, Duration::from_millis(age));
    Some(Stored { status, headers, age, facts, body: payload.slice_ref(rest) })
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

    const AGE: Duration = Duration::from_millis(7_500);
    const FACTS: Facts = Facts { open: Open::Public, never_stale: true, immutable: false, lifetime: Some(AGE) };

    #[test]
    fn what_is_stored_is_replayed_without_copies() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>"));
        headers.append("link", HeaderValue::from_static("<b>"));
        headers.insert("x-bytes", HeaderValue::from_bytes(b"caf\xc3\xa9").expect("a value"));
        headers.insert("age", HeaderValue::from_static("7"));
        let mut payload = encode(StatusCode::NOT_FOUND, &headers, AGE, FACTS).expect("encodes");
        payload.extend_from_slice(b"body");
        let payload = Bytes::from(payload);
        let stored = decode(&payload).expect("decodes");
        headers.insert("age", HeaderValue::from_static(""));
        headers.insert("cache-status", HeaderValue::from_static(""));
        assert_eq!((stored.status, stored.age, stored.facts), (StatusCode::NOT_FOUND, AGE, FACTS));
        assert_eq!((&stored.headers, &stored.body[..]), (&headers, &b"body"[..]));
        assert!(payload.as_ptr_range().contains(&stored.headers["x-bytes"].as_bytes().as_ptr()));
        assert!(payload.as_ptr_range().contains(&stored.body.as_ptr()));
    }

    /// With room made for as many fields as there are, this was a panic.
    #[test]
    fn more_fields_than_a_map_holds_are_no_panic() {
        let payload = |fields: Vec<(&str, &[u8])>| {
            let head = (200_u16, 0_u64, (0_u8, false, false, None::<u64>), fields);
            Bytes::from(bincode::encode_to_vec(head, bincode::config::standard()).expect("encodes"))
        };
        let fields = vec![("link", &b"<a>"[..]); 40_000];
        assert_eq!(decode(&payload(fields)).expect("decodes").headers.len(), 40_002);
        let names: Vec<_> = (0..40_000).map(|n| format!("x-{n}")).collect();
        assert!(decode(&payload(names.iter().map(|name| (name.as_str(), &b""[..])).collect())).is_none());
    }

    #[test]
    fn garbage_does_not_decode() {
        for garbage in [&b""[..], b"\xff\xff\xff", b"\xfb\xff\xff\x00\xfd\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert!(decode(&Bytes::from_static(garbage)).is_none());
        }
    }
}
