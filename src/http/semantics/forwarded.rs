//! The fields with which proxies repeat the target of the client's request. Applications build links and redirects from
//! them, and clients can send them as well.

use crate::config::http::HttpOptions;
use http::{HeaderMap, HeaderName, HeaderValue, header::FORWARDED};

/// The scheme and authority that a key takes from fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct PublicOrigin<'a> {
    pub(in crate::http) scheme: Option<&'a str>,
    pub(in crate::http) authority: Option<&'a [u8]>,
}

/// Returns the scheme of `X-Forwarded-Proto` and what trusted fields say of the origin. `None` if they contradict each
/// other or are not well-formed, so that the request has no key.
pub(in crate::http) fn public_origin<'a>(headers: &'a HeaderMap, options: &HttpOptions) -> Option<PublicOrigin<'a>> {
    let mut origin = PublicOrigin::default();
    for value in headers.get_all(&X_FORWARDED_PROTO) {
        // Applications read either of several lines, so a second line is a contradiction even if it is equal.
        if origin.scheme.replace(scheme(value.as_bytes())?).is_some() {
            return None;
        }
    }
    let is_trusted = |name: &HeaderName| options.trusted_forwarded.contains(name);
    if is_trusted(&X_FORWARDED_HOST) {
        for value in headers.get_all(&X_FORWARDED_HOST) {
            let one = value.to_str().ok().filter(|host| !host.is_empty() && !host.contains([',', ' ', '\t']))?;
            origin = origin.merge(PublicOrigin { authority: Some(one.as_bytes()), scheme: None })?;
        }
    }
    if is_trusted(&FORWARDED) {
        for value in headers.get_all(&FORWARDED) {
            origin = origin.merge(parse(value)?)?;
        }
    }
    Some(origin)
}

impl<'a> PublicOrigin<'a> {
    /// Adds what another field says. `None` if it says something else.
    fn merge(self, other: Self) -> Option<Self> {
        let same_scheme = self.scheme.is_none_or(|scheme| other.scheme.is_none_or(|other| other == scheme));
        let same_authority = self
            .authority
            .is_none_or(|authority| other.authority.is_none_or(|other| other.eq_ignore_ascii_case(authority)));
        (same_scheme && same_authority)
            .then_some(Self { scheme: self.scheme.or(other.scheme), authority: self.authority.or(other.authority) })
    }
}

/// Returns the authority without the port that its scheme implies (RFC 9110 §4.2.3).
pub(in crate::http) fn without_default_port<'a>(authority: &'a [u8], scheme: &str) -> &'a [u8] {
    let port = if scheme == "https" { &b":443"[..] } else { b":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}

/// Returns the scheme that the text names, if it is exactly one of HTTP.
pub(super) fn scheme(text: &[u8]) -> Option<&'static str> {
    match text {
        b"http" => Some("http"),
        b"https" => Some("https"),
        _ => None,
    }
}

/// Returns `host` and `proto` of a `Forwarded` field. `None` if it is malformed or its elements differ.
///
/// Quoted values with a delimiter are refused, although RFC 7239 §4 permits them: applications that split at each
/// delimiter would find a `host` in `for="a;host=b"`.
pub(in crate::http) fn parse(value: &HeaderValue) -> Option<PublicOrigin<'_>> {
    let mut origin = PublicOrigin::default();
    for pair in value.to_str().ok()?.split([',', ';']).map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=')?;
        let text = text.strip_prefix('"').map_or(Some(text), |quoted| quoted.strip_suffix('"'))?;
        if name.is_empty()
            || text.is_empty()
            || text.contains(['"', '\\', '=', ' ', '\t'])
            || name.contains([' ', '\t', '"'])
        {
            return None;
        }
        let said = match name {
            _ if name.eq_ignore_ascii_case("host") => PublicOrigin { authority: Some(text.as_bytes()), scheme: None },
            _ if name.eq_ignore_ascii_case("proto") => {
                PublicOrigin { scheme: Some(scheme(text.as_bytes())?), authority: None }
            }
            _ => continue,
        };
        origin = origin.merge(said)?;
    }
    Some(origin)
}

/// Returns the port of the authority, or the port of its scheme.
pub(in crate::http) fn port<'a>(authority: &'a [u8], scheme: &str) -> &'a [u8] {
    let default: &[u8] = if scheme == "https" { b"443" } else { b"80" };
    match authority.iter().rposition(|byte| matches!(byte, b':' | b']')) {
        Some(colon) if authority[colon] == b':' => &authority[colon + 1..],
        _ => default,
    }
}

static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

#[cfg(test)]
mod tests {
    use super::*;

    fn origin<'a>(scheme: Option<&'a str>, authority: Option<&'a str>) -> Option<PublicOrigin<'a>> {
        Some(PublicOrigin { scheme, authority: authority.map(str::as_bytes) })
    }

    #[test]
    fn forwarded_elements_must_be_plain_and_equal() {
        for (value, expected) in [
            ("", origin(None, None)),
            ("for=\"[2001:db8::1]:80\";by=_a, , for=b", origin(None, None)),
            ("for=a; HOST=\"h:8080\" ; proto=https,host=H:8080", origin(Some("https"), Some("h:8080"))),
            ("host=a, host=b", None),
            ("proto=http;proto=https", None),
            ("proto=wss", None),
            ("host", None),
            ("host=", None),
            ("=h", None),
            ("host =h", None),
            ("host=\"h", None),
            ("host=h\"", None),
            ("host=\"a\\b\"", None),
            ("for=\"x;host=evil\"", None),
            ("for=a=b", None),
        ] {
            let value = HeaderValue::from_static(value);
            assert_eq!(parse(&value), expected, "{value:?}");
        }
    }

    #[test]
    fn port_is_that_of_the_authority_or_scheme() {
        for (authority, scheme, expected) in [
            ("h", "http", "80"),
            ("h", "https", "443"),
            ("h:8080", "https", "8080"),
            ("[::1]", "http", "80"),
            ("[::1]:81", "http", "81"),
            ("", "http", "80"),
        ] {
            assert_eq!(port(authority.as_bytes(), scheme), expected.as_bytes(), "{authority}");
        }
    }
}
