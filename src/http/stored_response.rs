//! Responses that are shared: in flight to the waiters of this process, or stored. How stored ones are encoded, the head
//! followed by the body, and how long they are used.

use super::{
    annotation::CACHE_STATUS,
    body::SharedBody,
    semantics::{
        freshness::StoredFreshness,
        request::{AuthSharing, Credentials},
        storing::StorageTerms,
    },
    vary::SecondaryKey,
};
use crate::{
    clock::{self, Timestamp},
    config::Config,
    key::KeyHash,
    store::{
        entry::{Entry, Kind, Lifetimes, SharedValue},
        token::Token,
    },
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::{sync::Arc, time::Duration};

/// A stored response: its end-to-end head, the freshness derived from the head, and the body.
pub(super) struct StoredResponse {
    pub(super) status: StatusCode,
    /// Begins with an empty `Age` and an empty `Cache-Status`, which each reply sets. PERF: a map that grows is copied
    /// once more.
    pub(super) headers: HeaderMap,
    /// The age with which it arrived.
    pub(super) age: Duration,
    pub(super) freshness: StoredFreshness,
    /// The hash over the request fields that selected it without a `Vary`.
    pub(super) others: Option<KeyHash>,
    /// The id in the variants of requests with such fields, if its own request had none: that of the first response at
    /// this place.
    pub(super) index_id: Token,
    pub(super) body: Bytes,
}

impl StoredResponse {
    /// Reports whether it may serve requests with these credentials that have not asked for it.
    pub(super) fn admits(&self, credentials: Credentials) -> bool {
        !self.freshness.always_validated && self.freshness.auth_sharing.admits(credentials)
    }
}

/// A response in flight, as the waiters of this process see it.
pub(super) struct InFlightResponse {
    pub(super) id: Token,
    /// Set if the response varies by fields that its redirect path does not cover yet.
    pub(super) secondary_key: Option<SecondaryKey>,
    pub(super) freshness: StoredFreshness,
    /// The hash over the request fields that selected it without a `Vary`.
    pub(super) others: Option<KeyHash>,
    /// The id in the variants of requests with such fields.
    pub(super) index_id: Token,
    pub(super) response_time: Timestamp,
    /// The age with which it arrived.
    pub(super) age: Duration,
    /// Freshness lifetime, counted from its arrival. `None` for an error, which no lifetime bounds.
    pub(super) fresh_for: Option<Duration>,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: InFlightBody,
}

impl InFlightResponse {
    /// Sets the body.
    pub(super) fn with(self, body: InFlightBody) -> SharedValue {
        Arc::new(Self { body, ..self })
    }
}

/// The body of a response in flight.
pub(super) enum InFlightBody {
    /// Complete, or empty because it cannot be shared.
    Whole(Bytes),
    Collected(Arc<SharedBody>),
}

/// Encodes an end-to-end head. `None` if that fails, which no head that hyper accepts does.
pub(super) fn encode(
    status: StatusCode,
    headers: &HeaderMap,
    age: Duration,
    freshness: StoredFreshness,
    (others, index_id): (Option<KeyHash>, Token),
) -> Option<Vec<u8>> {
    let fields: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let StoredFreshness { auth_sharing, never_stale, immutable, lifetime, for_everyone, always_validated } = freshness;
    let sharing = (auth_sharing as u8, for_everyone, always_validated, others.map(|hash| *hash.as_bytes()));
    let stated = (*index_id.as_bytes(), never_stale, immutable, lifetime.map(millis));
    let head = (status.as_u16(), millis(age), sharing, stated, fields);
    bincode::encode_to_vec(head, bincode::config::standard()).ok()
}

/// Decodes a stored response. `None` if it is malformed.
///
/// Field values and body are slices of the payload; only names are copied. Fields are read one by one, so that a forged
/// count is not allocated, and more fields than a `HeaderMap` can hold do not panic.
pub(super) fn decode(payload: &Bytes) -> Option<StoredResponse> {
    let mut rest = &payload[..];
    let (status, age) = next::<(u16, u64)>(&mut rest)?;
    let (auth_sharing, for_everyone, always_validated, others) = next::<(u8, bool, bool, Option<[u8; 16]>)>(&mut rest)?;
    let (index_id, never_stale, immutable, lifetime) = next::<([u8; 16], bool, bool, Option<u64>)>(&mut rest)?;
    let auth_sharing = [AuthSharing::Default, AuthSharing::Authorization, AuthSharing::Public]
        .into_iter()
        .find(|candidate| *candidate as u8 == auth_sharing)?;
    let lifetime = lifetime.map(Duration::from_millis);
    let freshness = StoredFreshness { auth_sharing, never_stale, immutable, lifetime, for_everyone, always_validated };
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
    let (status, age) = (StatusCode::from_u16(status).ok()?, Duration::from_millis(age));
    let (others, index_id) = (others.map(KeyHash::from_bytes), Token::from_bytes(index_id));
    Some(StoredResponse { status, headers, age, freshness, others, index_id, body: payload.slice_ref(rest) })
}

/// Returns the stored response, if the entry is one.
pub(super) fn stored(entry: &Entry) -> Option<&StoredResponse> {
    let is_response = entry.meta().kind == Kind::Value && entry.meta().codec == RESPONSE;
    is_response.then(|| entry.payload().decoded_ref(decode))?
}

/// Returns the lifetimes that a stored response states, otherwise the lifetimes of the policy.
pub(super) fn lifetimes(config: &Config, terms: &StorageTerms) -> Lifetimes {
    let policy = config.policy.lifetimes(terms.lifetime, clock::random_unit());
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

/// Codec id of stored responses, as opposed to typed values and other formats of the head.
pub(super) const RESPONSE: u64 = u64::from_be_bytes(*b"http-5\0\0");
/// Number of fields that space is reserved for.
const USUAL_FIELDS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_millis(7_500);
    const FRESHNESS: StoredFreshness = StoredFreshness {
        auth_sharing: AuthSharing::Public,
        never_stale: true,
        immutable: false,
        lifetime: Some(AGE),
        for_everyone: true,
        always_validated: false,
    };
    const OTHERS: KeyHash = KeyHash::from_bytes([7; 16]);
    const INDEX: Token = Token::from_bytes([8; 16]);

    #[test]
    fn stored_head_decodes_without_copying_values() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>"));
        headers.append("link", HeaderValue::from_static("<b>"));
        headers.insert("x-bytes", HeaderValue::from_bytes(b"caf\xc3\xa9").expect("a value"));
        let mut payload =
            encode(StatusCode::NOT_FOUND, &headers, AGE, FRESHNESS, (Some(OTHERS), INDEX)).expect("encodes");
        payload.extend_from_slice(b"body");
        let payload = Bytes::from(payload);
        let stored = decode(&payload).expect("decodes");
        headers.insert("age", HeaderValue::from_static(""));
        headers.insert("cache-status", HeaderValue::from_static(""));
        assert_eq!((stored.status, stored.age, stored.freshness), (StatusCode::NOT_FOUND, AGE, FRESHNESS));
        assert_eq!((stored.others, stored.index_id), (Some(OTHERS), INDEX));
        assert_eq!((&stored.headers, &stored.body[..]), (&headers, &b"body"[..]));
        assert!(payload.as_ptr_range().contains(&stored.headers["x-bytes"].as_bytes().as_ptr()));
        assert!(payload.as_ptr_range().contains(&stored.body.as_ptr()));
    }

    /// Seen to fail when space was reserved for the stated number of fields: that panicked.
    #[test]
    fn stored_head_with_too_many_fields_does_not_panic() {
        let payload = |fields: Vec<(&str, &[u8])>| {
            let (sharing, selected_by) = ((0_u8, false, false), (None::<[u8; 16]>, [0_u8; 16]));
            let head = (200_u16, 0_u64, sharing, selected_by, (false, false, None::<u64>), fields);
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
