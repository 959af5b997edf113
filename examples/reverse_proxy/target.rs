//! The target of a request: a pure function of its head.

use hyper::{
    HeaderMap, Method, Request, StatusCode, Uri,
    header::HOST,
    http::uri::{Authority, PathAndQuery, Scheme},
};

/// The reason why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) StatusCode, pub(crate) &'static str);

/// Returns the URI that the client means (RFC 9110 §7.1), with the authority in lower case. The cache key is made of
/// it, and the origin receives the same.
pub(crate) fn of<B>(request: &Request<B>) -> Result<Uri, Refusal> {
    let (uri, headers) = (request.uri(), request.headers());
    if request.method() == Method::CONNECT {
        return Err(Refusal(StatusCode::NOT_IMPLEMENTED, "CONNECT is not supported"));
    }
    let named = host(headers)?;
    // RFC 9112 §3.2.2: the authority of the target takes precedence over Host.
    let authority = match uri.authority() {
        Some(_) if uri.scheme() != Some(&Scheme::HTTP) => return Err(bad("the scheme of the target is not http")),
        Some(authority) => checked(authority.as_str())?,
        None => named,
    };
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let target = Uri::builder().scheme(Scheme::HTTP).authority(authority).path_and_query(path);
    target.build().map_err(|_| bad("the target is malformed"))
}

/// RFC 9112 §3.2: a request without Host, with several, or with a malformed one gets a 400, whatever its target is.
fn host(headers: &HeaderMap) -> Result<Authority, Refusal> {
    let mut lines = headers.get_all(HOST).iter();
    match (lines.next(), lines.next()) {
        (Some(host), None) => checked(host.to_str().map_err(|_| bad("Host is malformed"))?),
        (Some(_), Some(_)) => Err(bad("there is more than one Host")),
        (None, _) => Err(bad("there is no Host")),
    }
}

/// RFC 9110 §4.2.4: an authority with userinfo is likely to deceive.
fn checked(authority: &str) -> Result<Authority, Refusal> {
    let malformed = bad("the authority is malformed");
    let authority: Authority = authority.to_ascii_lowercase().parse().map_err(|_| malformed)?;
    let whole = match authority.port_u16() {
        Some(_) => authority.as_str().rsplit_once(':').map_or("", |(host, _)| host),
        None => authority.as_str(),
    };
    if whole == authority.host() && !whole.is_empty() { Ok(authority) } else { Err(malformed) }
}

fn bad(why: &'static str) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: &str, uri: &str, hosts: &[&str]) -> Result<String, u16> {
        let mut request = Request::builder().method(method).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let request = request.body(()).expect("a request");
        of(&request).map(|uri| uri.to_string()).map_err(|Refusal(status, _)| status.as_u16())
    }

    #[test]
    fn target_takes_its_authority_from_the_uri_before_host() {
        assert_eq!(target("GET", "/A//b?c", &["Example.org"]), Ok("http://example.org/A//b?c".into()));
        assert_eq!(target("GET", "http://A.example:8080/b", &["other"]), Ok("http://a.example:8080/b".into()));
        assert_eq!(target("GET", "//h/b", &["[::1]:80"]), Ok("http://[::1]:80//h/b".into()));
        assert_eq!(target("OPTIONS", "*", &["h"]).map(|target| target.ends_with('*')), Ok(true));
    }

    #[test]
    fn target_is_rejected_without_a_single_valid_host() {
        let hosts: [&[&str]; 12] = [
            &[],
            &["a", "b"],
            &[""],
            &["a b"],
            &["a/b"],
            &["a\tb"],
            &["a@b"],
            &["a:"],
            &["a:b"],
            &["a:65536"],
            &["a?b"],
            &[":80"],
        ];
        for hosts in hosts {
            assert_eq!(target("GET", "/", hosts), Err(400), "{hosts:?}");
            assert_eq!(target("GET", "http://a/", hosts), Err(400), "{hosts:?}");
        }
        assert_eq!(target("GET", "http://user@a/", &["a"]), Err(400));
        assert_eq!(target("GET", "https://a/", &["a"]), Err(400));
        assert_eq!(target("CONNECT", "a:80", &["a"]), Err(501));
    }
}
