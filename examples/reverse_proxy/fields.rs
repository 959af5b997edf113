//! The header fields of a forwarded message: pure functions of its head.

use hyper::{
    HeaderMap, Version,
    header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, VIA},
    http::uri::Authority,
};

/// Changes a request's fields to the form that the origin will see, before the guard sees them. A field that a `Vary`
/// names but that never reaches the origin could poison a variant. `trusted` are fields that a proxy in front sets.
pub(crate) fn forward_request(fields: &mut HeaderMap, version: Version, authority: &Authority, trusted: &[&str]) {
    drop_hop_by_hop(fields);
    let is_dropped = |name: &&HeaderName| is_of_the_client(name) && !trusted.contains(&name.as_str());
    let dropped: Vec<HeaderName> = fields.keys().filter(is_dropped).cloned().collect();
    for name in dropped {
        fields.remove(name);
    }
    // Every character of an authority is valid in a header field.
    if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
        fields.insert(HOST, host.clone());
        fields.entry("x-forwarded-host").or_insert(host);
    }
    fields.entry("x-forwarded-proto").or_insert(HeaderValue::from_static("http"));
    fields.append(VIA, via(version));
}

/// Changes a response's fields to the form that the client will see, before it is stored.
pub(crate) fn forward_response(fields: &mut HeaderMap, version: Version) {
    drop_hop_by_hop(fields);
    fields.append(VIA, via(version));
}

/// Reports whether origins trust this field about the client or its target without naming it in a `Vary`. Origins that
/// use CGI or WSGI read an underscore as a hyphen.
fn is_of_the_client(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    CLIENTS.contains(&name.as_str()) || name.starts_with("x-forwarded-")
}

/// RFC 9110 §7.6.1: drops the fields that `Connection` lists, and the known hop-by-hop fields. RFC 9112 §6.3: a
/// `Content-Length` beside a `Transfer-Encoding` counts for nothing, and is not forwarded.
fn drop_hop_by_hop(fields: &mut HeaderMap) {
    if fields.contains_key(TRANSFER_ENCODING) {
        fields.remove(CONTENT_LENGTH);
    }
    let listed: Vec<HeaderName> = fields
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    for name in listed {
        fields.remove(name);
    }
    for name in HOP_BY_HOP {
        fields.remove(name);
    }
}

/// RFC 9110 §7.6.3: the version in which the message was received, and the name of this proxy.
fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(if version == Version::HTTP_10 { "1.0 stampede-guard" } else { "1.1 stampede-guard" })
}

const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];
/// The fields with which a proxy in front states the target of its client.
pub(crate) const OF_A_PROXY: [&str; 2] = ["x-forwarded-host", "x-forwarded-proto"];
/// The fields with which clients describe themselves and their target, besides `X-Forwarded-*`.
const CLIENTS: [&str; 5] = ["forwarded", "x-host", "x-original-url", "x-real-ip", "x-rewrite-url"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_request_drops_hop_by_hop_and_client_fields() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("host", "Other"),
            ("connection", "close, X-Hop,, \u{e9}, upgrade, Host"),
            ("x-hop", "1"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("forwarded", "for=1"),
            ("x-forwarded-for", "1"),
            ("x-forwarded-host", "evil"),
            ("x_forwarded-host", "evil"),
            ("x_real_ip", "1"),
            ("x-original-url", "/admin"),
            ("via", "1.1 nearer"),
            ("accept", "*/*"),
        ] {
            fields.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        let mut trusting = fields.clone();
        forward_request(&mut trusting, Version::HTTP_11, &Authority::from_static("a:80"), &OF_A_PROXY);
        assert_eq!(trusting["x-forwarded-host"], "evil");
        assert_eq!(trusting["x-forwarded-proto"], "http");
        assert!(!trusting.contains_key("x-forwarded-for") && !trusting.contains_key("x_forwarded-host"));
        forward_request(&mut fields, Version::HTTP_10, &Authority::from_static("a:80"), &[]);
        let mut left: Vec<_> =
            fields.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("printable"))).collect();
        left.sort_unstable();
        let expected = [
            ("accept", "*/*"),
            ("host", "a:80"),
            ("via", "1.0 stampede-guard"),
            ("via", "1.1 nearer"),
            ("x-forwarded-host", "a:80"),
            ("x-forwarded-proto", "http"),
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn content_length_beside_transfer_encoding_is_dropped() {
        for (encoding, kept) in [(None, true), (Some("chunked"), false)] {
            let mut fields = HeaderMap::new();
            fields.insert("content-length", HeaderValue::from_static("5"));
            fields.extend(encoding.map(|encoding| (TRANSFER_ENCODING, HeaderValue::from_static(encoding))));
            forward_response(&mut fields, Version::HTTP_11);
            assert_eq!(fields.contains_key("content-length"), kept);
            assert!(!fields.contains_key("transfer-encoding"));
        }
    }
}
