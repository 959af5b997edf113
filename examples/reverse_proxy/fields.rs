//! The header fields of a forwarded message: pure functions of its head.

use hyper::{
    HeaderMap, Version,
    header::{CONNECTION, HOST, HeaderName, HeaderValue, VIA},
    http::uri::Authority,
};

/// Changes a request's fields to the form that the origin will see, before the guard sees them. A field that a `Vary`
/// names but that never reaches the origin could poison a variant.
pub(crate) fn forward_request(fields: &mut HeaderMap, version: Version, authority: &Authority) {
    drop_hop_by_hop(fields);
    let dropped: Vec<HeaderName> = fields.keys().filter(|name| is_of_the_client(name)).cloned().collect();
    for name in dropped {
        fields.remove(name);
    }
    // Every character of an authority is valid in a header field.
    if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
        fields.insert(HOST, host.clone());
        fields.insert("x-forwarded-host", host);
    }
    fields.insert("x-forwarded-proto", HeaderValue::from_static("http"));
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

/// RFC 9110 §7.6.1: drops the fields that `Connection` lists, and the known hop-by-hop fields.
fn drop_hop_by_hop(fields: &mut HeaderMap) {
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
        forward_request(&mut fields, Version::HTTP_10, &Authority::from_static("a:80"));
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
}
