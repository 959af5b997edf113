//! Stored heads of responses, and heads to be stored.

use super::{append, lines};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};
use stampede_guard::fuzzing;
use std::time::Duration;

pub(super) fn holds(input: &[u8]) {
    let payload = Bytes::copy_from_slice(input);
    if let Some((status, headers, _, body)) = fuzzing::decode_head(&payload) {
        assert!(payload.ends_with(&body));
        is_stored(status, &headers, &body);
    }
    // The same input as a head from the wire: a status, a field per line, and the rest is the body.
    let mut lines = lines(input);
    let status = lines.next().and_then(|line| StatusCode::from_bytes(line).ok()).unwrap_or_default();
    let mut headers = HeaderMap::new();
    for line in lines.by_ref() {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { break };
        let Ok(name) = HeaderName::from_bytes(&line[..colon]) else { continue };
        append(&mut headers, name, line[colon + 1..].trim_ascii());
    }
    is_stored(status, &headers, lines.next().unwrap_or_default());
}

/// Decoding returns the head that was stored, without the fields of one connection. A second round loses nothing more.
fn is_stored(status: StatusCode, headers: &HeaderMap, body: &[u8]) {
    let (status_out, kept, age, body_out) = stored(status, headers, body);
    assert_eq!((status_out, &body_out[..], age), (status, body, AGE));
    for (name, value) in &kept {
        assert!(headers.get_all(name).iter().any(|there| there == value), "{name} comes from nowhere");
        assert!(!HOP_BY_HOP.contains(&name.as_str()), "{name} is stored");
    }
    let named = |name: &HeaderName| {
        let list = headers.get_all("connection").iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        list.map(<[u8]>::trim_ascii).any(|item| item.eq_ignore_ascii_case(name.as_str().as_bytes()))
    };
    for name in headers.keys().filter(|name| !HOP_BY_HOP.contains(&name.as_str()) && !named(name)) {
        assert!(headers.get_all(name).iter().eq(kept.get_all(name)), "{name} is lost");
    }
    assert_eq!(stored(status, &kept, body).1, kept);
}

fn stored(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> (StatusCode, HeaderMap, Duration, Bytes) {
    let mut payload = fuzzing::encode_head(status, headers, AGE);
    payload.extend_from_slice(body);
    fuzzing::decode_head(&payload.into()).expect("what was stored is read")
}

const AGE: Duration = Duration::from_millis(1234);
const HOP_BY_HOP: [&str; 12] = [
    "age",
    "cache-status",
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
