//! The cache key of a request (RFC 9111 §2): what the origin sees, and nothing that it does not.

use super::rules::Rules;
use crate::key::Key;
use http::{HeaderMap, HeaderValue, Request, Uri, header, uri::Authority};

/// What a request is about: the resource (RFC 9110 §7.1), and what else the [`Rules`] put into keys.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    scheme: &'a str,
    authority: &'a [u8],
    path: &'a str,
    fields: Option<&'a HeaderMap>,
}

/// The method class of a key: the answer to a HEAD never fills a GET.
#[derive(Clone, Copy)]
pub(super) enum Class {
    Get,
    Head,
}

impl<'a> Target<'a> {
    pub(super) fn of<B>(request: &'a Request<B>) -> Self {
        Self::at(original_uri(request), request.headers().get(header::HOST), request.headers())
    }

    fn at(uri: &'a Uri, host: Option<&'a HeaderValue>, fields: &'a HeaderMap) -> Self {
        let target = Self::of_uri(uri);
        let host = || host.map(HeaderValue::as_bytes).unwrap_or_default();
        Self { authority: uri.authority().map_or_else(host, |_| target.authority), fields: Some(fields), ..target }
    }

    pub(super) fn of_uri(uri: &'a Uri) -> Self {
        let path = uri.path_and_query().map_or("/", |target| target.as_str());
        let authority = authority(uri).unwrap_or_default();
        Self { scheme: uri.scheme_str().unwrap_or("http"), authority, path, fields: None }
    }

    /// The same with these fields of a request.
    pub(super) fn with(self, fields: &'a HeaderMap) -> Self {
        Self { fields: Some(fields), ..self }
    }

    /// The same over that scheme.
    pub(super) fn over(self, scheme: &'a str) -> Self {
        Self { scheme, ..self }
    }

    /// Another one of the same origin.
    pub(super) fn to(self, path: &'a str) -> Self {
        Self { path, ..self }
    }

    /// That of a request that names one resource, whoever reads it. Handlers go by `Host` where the key goes by the
    /// target's authority (RFC 9112 §3.2.2), and a target that is nothing but an authority (§3.2.3) has the key of the
    /// root, which no router takes it for.
    pub(super) fn clear<B>(request: &'a Request<B>, rules: &Rules) -> Option<Self> {
        let uri = original_uri(request);
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let host = hosts.next();
        let target = Self::at(uri, host, request.headers());
        let is_it = |host: &HeaderValue| target.authority.eq_ignore_ascii_case(host.as_bytes());
        let named = uri.authority().is_none() || host.is_none_or(is_it);
        let one_host = named && hosts.next().is_none();
        let of_http = matches!(uri.scheme_str(), None | Some("http" | "https"));
        let clear = of_http && uri.path_and_query().is_some() && (one_host || rules.any_host) && !target.is_long();
        clear.then_some(target)
    }

    /// RFC 9110 §4.1 has nobody support more than 8000 bytes. Clients choose them, and tables of keys are to stay small:
    /// nothing is stored of such a target.
    pub(super) fn is_long(&self) -> bool {
        self.path.len() > 8000
    }

    /// As an absolute URI, unless its authority is none.
    pub(super) fn uri(&self) -> Option<Uri> {
        let authority = std::str::from_utf8(self.authority).ok()?;
        Uri::builder().scheme(self.scheme).authority(authority).path_and_query(self.path).build().ok()
    }

    /// Method class, scheme, authority, path and query. The authority is lower-cased (RFC 9110 §4.2.3); path and query
    /// are taken to the byte, since no two spellings are surely one resource.
    pub(super) fn key(&self, class: Class, rules: &Rules) -> Key {
        let method = match class {
            Class::Get => "GET ",
            Class::Head => "HEAD ",
        };
        let authority = if rules.any_host { &b"*"[..] } else { self.authority };
        // A Host that is no authority must not reach into the path of another: only here can a NUL stand.
        let fence: &[u8] = if authority.iter().any(|byte| matches!(byte, b'/' | b'?' | b'#')) { b"\0" } else { b"" };
        let prefix = method.len() + self.scheme.len() + 3;
        let mut key = Vec::with_capacity(prefix + authority.len() + fence.len() + self.path.len());
        for part in [method.as_bytes(), self.scheme.as_bytes(), b"://", authority, fence, self.path.as_bytes()] {
            key.extend_from_slice(part);
        }
        key[prefix..prefix + authority.len()].make_ascii_lowercase();
        for field in &*rules.key_headers {
            // What no field value can hold sets it off.
            key.push(b'\0');
            for line in self.fields.iter().flat_map(|fields| fields.get_all(field)) {
                key.push(b'\n');
                key.extend_from_slice(line.as_bytes());
            }
        }
        Key::from(key)
    }

    /// Whether there is an authority, so that the key is one that a request can have.
    pub(super) fn is_absolute(&self) -> bool {
        !self.authority.is_empty()
    }
}

fn authority(uri: &Uri) -> Option<&[u8]> {
    uri.authority().map(Authority::as_str).map(str::as_bytes)
}

/// As the client sent it: `Router::nest` strips what it has matched, and `/v1/users` must not answer `/v2/users`.
#[cfg(feature = "axum")]
fn original_uri<B>(request: &Request<B>) -> &Uri {
    request.extensions().get::<axum::extract::OriginalUri>().map_or(request.uri(), |original| &original.0)
}

#[cfg(not(feature = "axum"))]
fn original_uri<B>(request: &Request<B>) -> &Uri {
    request.uri()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;

    fn of(request: http::request::Builder, rules: &Rules) -> Key {
        Target::of(&request.body(()).expect("a request")).key(Class::Get, rules)
    }

    fn key(uri: &str, host: &str) -> Key {
        of(Request::get(uri).header("host", host), &Rules::default())
    }

    #[test]
    fn the_target_is_kept_to_the_byte() {
        assert_eq!(key("/a?b=1", "Example.org"), Key::from("GET http://example.org/a?b=1"));
        assert_eq!(key("/a?b=1", "example.org"), key("http://EXAMPLE.org/a?b=1", "other"));
        let spellings = ["/a", "/A", "/a/", "//a", "/%61", "/a?", "/a?b", "/a?b=", "/./a", "/a?a&b", "/a?b&a"];
        for (i, a) in spellings.iter().enumerate() {
            for b in &spellings[i + 1..] {
                assert_ne!(key(a, "h"), key(b, "h"), "{a} {b}");
            }
        }
        assert_ne!(key("/a", "h"), key("/a", "h:8080"));
        assert_ne!(key("http://h/a", "h"), key("https://h/a", "h"));
        assert_ne!(key("/b", "h/a"), key("/a/b", "h"), "a Host that poses as a path");
        assert_ne!(key("/b", "h/a?"), key("/a?/b", "h"));
    }

    #[test]
    fn a_uri_has_the_key_of_its_requests() {
        let uri: Uri = "http://Example.org/a?b".parse().expect("a URI");
        assert_eq!(Target::of_uri(&uri).key(Class::Get, &Rules::default()), key("/a?b", "example.org"));
        let request = Request::get("/a?b").header("host", "Example.org").body(()).expect("a request");
        assert_eq!(Target::of(&request).uri(), Some(uri));
    }

    #[test]
    fn fields_can_be_part_of_it_and_the_host_need_not() {
        let tenant = Rules::default().key_header(HeaderName::from_static("x-tenant"));
        let asked = |values: &[&str]| {
            let request = Request::get("/a").header("host", "h");
            of(values.iter().fold(request, |request, value| request.header("x-tenant", *value)), &tenant)
        };
        let keys = [asked(&[]), asked(&[""]), asked(&["a"]), asked(&["b"]), asked(&["a", "b"]), asked(&["ab"])];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b), "{i}");
        }
        let any = Rules::default().any_host();
        assert_eq!(of(Request::get("/a").header("host", "x"), &any), of(Request::get("/a").header("host", "y"), &any));
    }
}
