//! Responses that are shared: in flight to the waiters of this process, or stored. How stored ones are encoded, the head
//! followed by the body, and how long they are used.

use super::{
    body::SharedBody,
    semantics::{
        request::AuthSharing,
        storing::{Sharing, StorageTerms},
    },
    vary::SecondaryKey,
};
use crate::{
    clock::{self, Timestamp},
    config::Config,
    key::KeyHash,
    store::{
        entry::{Entry, Kind, Lifetimes},
        token::Token,
    },
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use std::{sync::Arc, time::Duration};

/// The head of a response that may be shared, and the requests that it may serve.
pub(super) struct SharedHead {
    pub(super) status: StatusCode,
    /// The end-to-end fields. Those of a stored response begin with an empty `Age` and an empty `Cache-Status`, which
    /// each reply sets. PERF: a map that grows is copied once more.
    pub(super) headers: HeaderMap,
    /// The age with which it arrived.
    pub(super) age: Duration,
    pub(super) sharing: Sharing,
    /// The hash over the request fields that selected it without a `Vary`.
    pub(super) others: Option<KeyHash>,
    /// The id in the variants of requests with such fields, if its own request had none: that of the first response at
    /// this place.
    pub(super) index_id: Token,
}

impl SharedHead {
    /// Returns a response with this head.
    pub(super) fn with<B>(&self, body: B) -> Response<B> {
        let mut response = Response::new(body);
        (*response.status_mut(), *response.headers_mut()) = (self.status, self.headers.clone());
        response
    }
}

/// A stored response.
pub(super) struct StoredResponse {
    pub(super) head: SharedHead,
    pub(super) body: Bytes,
}

/// A response in flight, as the waiters of this process see it.
pub(super) struct InFlightResponse {
    pub(super) id: Token,
    pub(super) head: SharedHead,
    /// Set if the response varies by fields that its redirect path does not cover yet.
    pub(super) secondary_key: Option<SecondaryKey>,
    pub(super) response_time: Timestamp,
    /// Freshness lifetime, counted from its arrival. `None` for an error, which no lifetime bounds.
    pub(super) fresh_for: Option<Duration>,
    /// `None` if it cannot be shared: the waiters then get none.
    pub(super) body: Option<Arc<SharedBody>>,
}

/// Encodes a head. `None` if that fails, which no head that hyper accepts does.
pub(super) fn encode(head: &SharedHead) -> Option<Vec<u8>> {
    let SharedHead { status, headers, age, sharing, others, index_id } = head;
    let fields: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let Sharing { auth_sharing, for_everyone, always_validated } = *sharing;
    let sharing = (auth_sharing as u8, for_everyone, always_validated);
    let selection = (others.map(|hash| *hash.as_bytes()), *index_id.as_bytes());
    // Ages of any length take the same room, so that a 304 leaves the body in its place.
    let head = (status.as_u16(), millis.to_le_bytes(), sharing, selection, fields);
    bincode::encode_to_vec(head, bincode::config::standard()).ok()
}

/// Decodes a stored response. `None` if it is malformed.
///
/// Field values and body are slices of the payload; only names are copied. Fields are read one by one, so that a forged
/// count is not allocated, and more fields than a `HeaderMap` can hold do not panic.
pub(super) fn decode(payload: &Bytes) -> Option<StoredResponse> {
    let mut rest = &payload[..];
    let (status, age) = next::<(u16, [u8; 8])>(&mut rest)?;
    let (auth_sharing, for_everyone, always_validated) = next::<(u8, bool, bool)>(&mut rest)?;
    let (others, index_id) = next::<(Option<[u8; 16]>, [u8; 16])>(&mut rest)?;
    let auth_sharing = [AuthSharing::Default, AuthSharing::Authorization, AuthSharing::Public]
        .into_iter()
        .find(|candidate| *candidate as u8 == auth_sharing)?;
    let fields: usize = next(&mut rest)?;
    let mut headers = HeaderMap::with_capacity(fields.min(USUAL_FIELDS));
    for placeholder in [header::AGE, CACHE_STATUS] {
        headers.try_insert(placeholder, HeaderValue::from_static("")).ok()?;
    }
    for _ in 0..fields {
        let (name, value): (&str, &[u8]) = next(&mut rest)?;
        let value = HeaderValue::from_maybe_shared(payload.slice_ref(value)).ok()?;
        headers.try_append(HeaderName::from_bytes(name.as_bytes()).ok()?, value).ok()?;
    }
    let (status, age) = (StatusCode::from_u16(status).ok()?, Duration::from_millis(u64::from_le_bytes(age)));
    let sharing = Sharing { auth_sharing, for_everyone, always_validated };
    let (others, index_id) = (others.map(KeyHash::from_bytes), Token::from_bytes(index_id));
    let head = SharedHead { status, headers, age, sharing, others, index_id };
    Some(StoredResponse { head, body: payload.slice_ref(rest) })
}

/// Returns the stored response, if the entry is one.
pub(super) fn stored(entry: &Entry) -> Option<&StoredResponse> {
    let is_response = entry.meta().kind == Kind::Value && entry.meta().codec == RESPONSE;
    is_response.then(|| entry.payload().decoded_ref(decode))?
}

/// Returns the lifetimes that a stored response states, otherwise the lifetimes of the policy.
pub(super) fn lifetimes(config: &Config, status: StatusCode, terms: &StorageTerms) -> Lifetimes {
    let is_absent = matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE);
    let policy = config.policy.of_result(is_absent).lifetimes(terms.lifetime, clock::random_unit());
    let by_default = (!config.policy.has_stale_if_error).then_some(Duration::from_secs(60));
    Lifetimes {
        stale_while_revalidate: terms.stale_while_revalidate.unwrap_or(policy.stale_while_revalidate),
        stale_if_error: terms.stale_if_error.or(by_default).unwrap_or(policy.stale_if_error),
        retain_for: terms.retain_for,
        ..policy
    }
}

fn next<'a, T: bincode::BorrowDecode<'a, ()>>(rest: &mut &'a [u8]) -> Option<T> {
    let (part, read) = bincode::borrow_decode_from_slice(rest, bincode::config::standard()).ok()?;
    *rest = &rest[read..];
    Some(part)
}

pub(super) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
/// Codec id of stored responses, as opposed to typed values and other formats of the head.
pub(super) const RESPONSE: u64 = u64::from_be_bytes(*b"http-7\0\0");
/// Number of fields that space is reserved for.
const USUAL_FIELDS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_millis(7_500);
    const SHARING: Sharing = Sharing { auth_sharing: AuthSharing::Public, for_everyone: true, always_validated: false };
    const OTHERS: KeyHash = KeyHash::from_bytes([7; 16]);
    const INDEX: Token = Token::from_bytes([8; 16]);

    #[test]
    fn stored_head_decodes_without_copying_values() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>"));
        headers.append("link", HeaderValue::from_static("<b>"));
        headers.insert("x-bytes", HeaderValue::from_bytes(b"caf\xc3\xa9").expect("a value"));
        let (status, others) = (StatusCode::NOT_FOUND, Some(OTHERS));
        let head = SharedHead { status, headers, age: AGE, sharing: SHARING, others, index_id: INDEX };
        let mut payload = encode(&head).expect("encodes");
        let mut headers = head.headers;
        payload.extend_from_slice(b"body");
        let payload = Bytes::from(payload);
        let stored = decode(&payload).expect("decodes");
        headers.insert("age", HeaderValue::from_static(""));
        headers.insert("cache-status", HeaderValue::from_static(""));
        assert_eq!((stored.head.status, stored.head.age, stored.head.sharing), (StatusCode::NOT_FOUND, AGE, SHARING));
        assert_eq!((stored.head.others, stored.head.index_id), (Some(OTHERS), INDEX));
        assert_eq!((&stored.head.headers, &stored.body[..]), (&headers, &b"body"[..]));
        assert!(payload.as_ptr_range().contains(&stored.head.headers["x-bytes"].as_bytes().as_ptr()));
        assert!(payload.as_ptr_range().contains(&stored.body.as_ptr()));
    }

    /// Seen to fail when space was reserved for the stated number of fields: that panicked.
    #[test]
    fn stored_head_with_too_many_fields_does_not_panic() {
        let payload = |fields: Vec<(&str, &[u8])>| {
            let (sharing, selected_by) = ((0_u8, false, false), (None::<[u8; 16]>, [0_u8; 16]));
            let head = (200_u16, [0_u8; 8], sharing, selected_by, fields);
            Bytes::from(bincode::encode_to_vec(head, bincode::config::standard()).expect("encodes"))
        };
        let fields = vec![("link", &b"<a>"[..]); 40_000];
        assert_eq!(decode(&payload(fields)).expect("decodes").head.headers.len(), 40_002);
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
