//! The cache key of a request (RFC 9111 §2): what the origin sees, and nothing that it does not.

use crate::key::Key;
use http::{Request, Uri, header, uri::Authority};

/// Method class, scheme, authority, path and query. The authority is lower-cased (RFC 9110 §4.2.3); path and query are
/// taken to the byte, since no two spellings are surely one resource.
pub(super) fn of<B>(request: &Request<B>) -> Key {
    let uri = original_uri(request);
    let host = || request.headers().get(header::HOST).map(header::HeaderValue::as_bytes);
    let authority = uri.authority().map(Authority::as_str).map(str::as_bytes).or_else(host).unwrap_or_default();
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let scheme = uri.scheme_str().unwrap_or("http");
    // A Host that is no authority must not reach into the path of another: only here can a NUL stand.
    let fence: &[u8] = if authority.iter().any(|byte| b"/?#".contains(byte)) { b"\0" } else { b"" };
    let mut key = Vec::with_capacity(9 + scheme.len() + authority.len() + target.len());
    for part in [b"GET ", scheme.as_bytes(), b"://", authority, fence, target.as_bytes()] {
        key.extend_from_slice(part);
    }
    let authority_at = 4 + scheme.len() + 3;
    key[authority_at..authority_at + authority.len()].make_ascii_lowercase();
    Key::from(key)
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

    fn key(uri: &str, host: &str) -> Key {
        of(&Request::get(uri).header("host", host).body(()).expect("a request"))
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
}
