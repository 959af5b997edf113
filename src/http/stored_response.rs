//! Responses that are shared: in flight to the waiters of this process, or stored. How stored ones are encoded, the head
//! followed by the body, and how long they are used.

use super::{
    body::SharedBody,
    semantics::{
        request::{AuthSharing, ClientRequest},
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
use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use std::{sync::Arc, time::Duration};

/// The head of a response that may be shared, and the requests that it may serve.
pub(super) struct SharedHead {
    pub(super) status: StatusCode,
    /// The end-to-end fields. In a stored response they begin with an empty `Age` and an empty `Cache-Status`, which
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
    /// Reports whether this request selects the response, as far as `Vary` does not say.
    pub(super) fn is_selected_by(&self, request: ClientRequest<'_>) -> bool {
        self.others == request.others(self.sharing.for_everyone)
    }

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

/// Encodes a head, which the body follows.
///
/// ```text
/// 0..2     status
/// 2..10    age with which it arrived, in milliseconds
/// 10..13   sharing: credentials; 1 for everyone; 1 if always validated
/// 13..29   hash over the other selecting fields, if the next byte is 1
/// 30..46   index id
/// 46..50   number of fields; then of each one the length of its name, the name, the length of its value, the value
/// ```
///
/// Numbers are little-endian, lengths have 32 bits. Ages of any length take the same room, so that a 304 leaves the body
/// in its place.
pub(super) fn encode(head: &SharedHead) -> Vec<u8> {
    let SharedHead { status, headers, age, sharing, others, index_id } = head;
    let Sharing { auth_sharing, for_everyone, always_validated } = *sharing;
    let mut encoded = Vec::with_capacity(USUAL_LENGTH);
    encoded.put_u16_le(status.as_u16());
    encoded.put_u64_le(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    encoded.put_slice(&[auth_sharing as u8, for_everyone.into(), always_validated.into()]);
    encoded.put_slice(&others.map_or([0; 16], |hash| *hash.as_bytes()));
    encoded.put_u8(others.is_some().into());
    encoded.put_slice(index_id.as_bytes());
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX); // a longer head is longer than any entry
    encoded.put_u32_le(number(headers.len()));
    for part in headers.iter().flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]) {
        encoded.put_u32_le(number(part.len()));
        encoded.put_slice(part);
    }
    encoded
}

/// Decodes a stored response. `None` if it is malformed.
///
/// Field values and body are slices of the payload; only names are copied. Fields are read one by one, so that a forged
/// count is not allocated, and more fields than a `HeaderMap` can hold do not panic.
pub(super) fn decode(payload: &Bytes) -> Option<StoredResponse> {
    let mut rest = &payload[..];
    let status = StatusCode::from_u16(rest.try_get_u16_le().ok()?).ok()?;
    let age = Duration::from_millis(rest.try_get_u64_le().ok()?);
    let [auth_sharing, for_everyone, always_validated] = *array(&mut rest)?;
    let (others, [has_others], index_id) = (*array(&mut rest)?, *array(&mut rest)?, *array(&mut rest)?);
    let auth_sharing = [AuthSharing::Default, AuthSharing::Authorization, AuthSharing::Public]
        .into_iter()
        .find(|candidate| *candidate as u8 == auth_sharing)?;
    let fields = rest.try_get_u32_le().ok()? as usize;
    let mut headers = HeaderMap::with_capacity(fields.min(USUAL_FIELDS));
    for placeholder in [header::AGE, CACHE_STATUS] {
        headers.try_insert(placeholder, HeaderValue::from_static("")).ok()?;
    }
    for _ in 0..fields {
        let (name, value) = (part(&mut rest)?, part(&mut rest)?);
        let value = HeaderValue::from_maybe_shared(payload.slice_ref(value)).ok()?;
        headers.try_append(HeaderName::from_bytes(name).ok()?, value).ok()?;
    }
    let sharing = Sharing { auth_sharing, for_everyone: for_everyone == 1, always_validated: always_validated == 1 };
    let (others, index_id) = ((has_others == 1).then(|| KeyHash::from_bytes(others)), Token::from_bytes(index_id));
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

/// Reads this number of bytes.
fn array<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (read, unread) = rest.split_first_chunk()?;
    *rest = unread;
    Some(read)
}

/// Reads the bytes that follow their length.
fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = rest.try_get_u32_le().ok()?;
    rest.split_off(..length as usize)
}

pub(super) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
/// Codec id of stored responses, as opposed to typed values and other formats of the head. Raise its last digit with
/// each format: the layout, and with it the first name of an entry, follows that digit.
pub(super) const RESPONSE: u64 = u64::from_be_bytes(*b"\0\0http-8");
/// Number of fields that space is reserved for.
const USUAL_FIELDS: usize = 24;
/// Length of most encoded heads, in bytes.
const USUAL_LENGTH: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{LAYOUTS, layout};
    use std::collections::HashSet;

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
        let mut payload = encode(&head);
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

    /// Returns the payload of a response with this head and these fields.
    fn payload(fields: &[(&str, &str)]) -> Bytes {
        let head = SharedHead {
            status: StatusCode::NOT_FOUND,
            headers: HeaderMap::new(),
            age: AGE,
            sharing: SHARING,
            others: Some(OTHERS),
            index_id: INDEX,
        };
        let mut encoded = encode(&head);
        encoded.truncate(encoded.len() - size_of::<u32>());
        encoded.put_u32_le(fields.len() as u32);
        for part in fields.iter().flat_map(|(name, value)| [name, value]) {
            encoded.put_u32_le(part.len() as u32);
            encoded.put_slice(part.as_bytes());
        }
        encoded.into()
    }

    /// Bytes that processes of an earlier version have stored: another encoding needs another [`RESPONSE`].
    #[test]
    fn stored_head_keeps_its_bytes() {
        let bytes = [
            &b"\x94\x01\x4c\x1d\0\0\0\0\0\0"[..], // 404 after 7,500 ms
            b"\x02\x01\0",
            &[7; 16],
            b"\x01",
            &[8; 16],
            b"\x02\0\0\0\x04\0\0\0etag\x04\0\0\0\"v1\"\x01\0\0\0x\0\0\0\0",
        ];
        let bytes = bytes.concat();
        assert_eq!(payload(&[("etag", "\"v1\""), ("x", "")]), bytes);
        let stored = decode(&[&bytes[..], b"body"].concat().into()).expect("decodes");
        let mut head = stored.head;
        head.headers = head.headers.iter().skip(2).map(|(name, value)| (name.clone(), value.clone())).collect();
        assert_eq!((encode(&head), &stored.body[..]), (bytes, &b"body"[..]));
        head.others = None;
        assert_eq!(decode(&encode(&head).into()).expect("decodes").head.others, None);
    }

    /// In a rolling deploy both formats have entries of their own: see `fleet::layouts` for types.
    ///
    /// Seen to fail with `http-8\0\0` and `http-9\0\0`.
    #[test]
    fn stored_head_of_each_format_has_its_own_name() {
        let formats = [RESPONSE, RESPONSE + 1];
        let digits: HashSet<_> = formats.iter().map(|format| layout(*format, 0) % LAYOUTS).collect();
        assert_eq!(digits.len(), formats.len());
    }

    /// Seen to fail when space was reserved for the stated number of fields: that panicked.
    #[test]
    fn stored_head_with_too_many_fields_does_not_panic() {
        let stored = decode(&payload(&vec![("link", "<a>"); 40_000])).expect("decodes");
        assert_eq!(stored.head.headers.len(), 40_002);
        let names: Vec<_> = (0..40_000).map(|n| format!("x-{n}")).collect();
        assert!(decode(&payload(&names.iter().map(|name| (&name[..], "")).collect::<Vec<_>>())).is_none());
    }

    #[test]
    fn cut_or_changed_head_does_not_decode() {
        let whole = payload(&[("etag", "\"v1\""), ("link", "<a>")]);
        for length in 0..whole.len() {
            assert!(decode(&whole.slice(..length)).is_none(), "{length}");
        }
        // The status, the kinds of credentials, the number of fields, the lengths of a name and of a value, and a name.
        for at in [1, 10, 49, 53, 61, 54] {
            let mut changed = whole.to_vec();
            changed[at] = 0xff;
            assert!(decode(&changed.into()).is_none(), "{at}");
        }
    }
}
