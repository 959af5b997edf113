//! Invalidation of stored responses: by the application, and by unsafe requests (RFC 9111 §4.4).

use super::{
    annotation::{Finished, Recorder, StatusNote, Storage},
    forward::forward_uncached,
    key::{MethodClass, Target, layout_of_responses},
    service::HttpCache,
};
use crate::{
    cache_status::CacheStatus,
    engine::resource::Resource,
    error::{Error, ErrorKind},
    guard::StampedeGuard,
    telemetry::FrontEnd,
    uncached::Uncached,
};
use futures_util::future::join_all;
use http::{
    HeaderMap, Request, Response, StatusCode, Uri, header,
    uri::{Authority, PathAndQuery},
};
use tower_service::Service;

impl StampedeGuard {
    /// Invalidates a URL: drops all its stored variants and refuses every response to it that was requested earlier.
    ///
    /// For handlers that change what other URLs show. A successful unsafe request to the URL itself invalidates it
    /// without this call.
    ///
    /// The URL is absolute, as clients write it: `https://example.org/products/7?lang=en`. It is
    /// invalidated under both schemes, because a server after a TLS terminator sees `http`, and in one step. With
    /// [`ignore_host`](crate::http::HttpOptions::ignore_host) a path is enough. Request fields that
    /// [`HttpOptions`](crate::http::HttpOptions) add to the key are taken to be absent. If middleware has rewritten the
    /// URI of a request, only an unsafe request that is rewritten alike invalidates its entry.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// guard.invalidate_url(&"https://example.org/products/7".parse()?).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`] for a URL without authority, unless the keys have none.
    /// Otherwise as [`invalidate`](Self::invalidate).
    pub async fn invalidate_url(&self, url: &Uri) -> Result<(), Error> {
        if url.authority().is_none() && !self.config.http.ignore_host {
            let what = format!(
                "`{url}` names no host, which is part of the cache key; add one, or set `HttpOptions::ignore_host`"
            );
            return Err(Error::new(ErrorKind::InvalidUrl, what));
        }
        match self.url(Target::of_uri(url)) {
            Some(url) => url.invalidate().await,
            None => Ok(()),
        }
    }

    /// Returns the resource that stands for all responses to the target. `None` if it is too long, because nothing is
    /// stored of such a target.
    fn url(&self, target: Target<'_>) -> Option<Resource> {
        if target.exceeds_limit() {
            return None;
        }
        let key = target.key(MethodClass::Any, &self.config.http);
        Some(self.resource_in(FrontEnd::Http, layout_of_responses(&self.config), key))
    }
}

impl<S> HttpCache<S> {
    /// Forwards an unsafe request and invalidates its target, and the URIs that the response names, unless the response
    /// is an error.
    ///
    /// The response is returned after the store has acknowledged. Then no fetch that began before the change is stored.
    /// The response does not wait for a store that is unavailable: its `Cache-Status` says that the invalidation is
    /// pending. If the client leaves after the origin has responded, the invalidation goes on.
    pub(super) async fn forward_unsafe<Req, B>(self, request: Request<Req>) -> Finished<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>>,
    {
        let targets = Target::changed_by(&request, &self.guard.config.http);
        let uris: Vec<_> = targets.iter().filter_map(Target::uri).collect();
        let mut resources: Vec<_> = targets.into_iter().filter_map(|target| self.guard.url(target)).collect();
        let fields = request.headers().clone();
        let recorder = Recorder::new(&self.guard, &request);
        let mut annotated = forward_uncached(self.inner, request, "method", Uncached::Method).await?;
        if invalidates(annotated.response.status()) {
            for uri in &uris {
                for path in also(uri, annotated.response.headers()) {
                    let other = self.guard.url(Target::beside(uri, path.as_str(), &fields));
                    resources.extend(other.filter(|other| resources.iter().all(|known| known.key != other.key)));
                }
            }
            // All begin before the first await, at which the client may leave.
            let begun: Vec<_> = resources.into_iter().map(Resource::invalidate_or_defer).collect();
            if join_all(begun).await.contains(&false) {
                let status = annotated.response.status().as_u16();
                let storage = Storage::NotStored(Uncached::InvalidationPending);
                annotated.note = StatusNote::Forwarded { reason: "method", status, storage };
            }
        }
        Ok(recorder.annotate(annotated, CacheStatus::Bypass))
    }
}

/// Reports whether this status of a response to an unsafe request invalidates the target: 2xx and 3xx do.
fn invalidates(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection()
}

/// Returns the other resources to invalidate: `Location` and `Content-Location`, resolved as in RFC 3986 §5.2. Only
/// resources of the target's own origin are returned, because no origin may invalidate responses of another.
fn also(target: &Uri, answer: &HeaderMap) -> Vec<PathAndQuery> {
    let (Some(scheme), Some(authority)) = (target.scheme_str(), target.authority()) else { return Vec::new() };
    let fields = [header::LOCATION, header::CONTENT_LOCATION];
    let lines = fields.iter().flat_map(|field| answer.get_all(field));
    let resolved = lines.filter_map(|line| {
        let reference = line.to_str().ok()?;
        // RFC 3986 §3.5: only the client interprets a fragment.
        resolve(scheme, authority, target.path(), reference.split('#').next()?.trim_ascii())
    });
    resolved.collect()
}

fn resolve(scheme: &str, authority: &Authority, path: &str, reference: &str) -> Option<PathAndQuery> {
    // RFC 3986 §4.2: a colon before the first slash ends a scheme.
    let head = reference.split(['/', '?']).next()?;
    let absolute = if head.contains(':') {
        Some(reference.parse::<Uri>().ok()?)
    } else if reference.starts_with("//") {
        Some(format!("{scheme}:{reference}").parse().ok()?)
    } else {
        None
    };
    if let Some(uri) = &absolute {
        let theirs = uri.authority()?;
        let same = uri.scheme_str()?.eq_ignore_ascii_case(scheme)
            && theirs.host().eq_ignore_ascii_case(authority.host())
            && port(theirs, scheme) == port(authority, scheme);
        return if same { without_dots(uri.path(), uri.query()) } else { None };
    }
    let (to, query) = match reference.split_once('?') {
        Some((to, query)) => (to, Some(query)),
        None => (reference, None),
    };
    if reference.is_empty() {
        // An empty reference is the target itself.
        None
    } else if to.is_empty() {
        without_dots(path, query)
    } else if to.starts_with('/') {
        without_dots(to, query)
    } else {
        let directory = path.rfind('/').map_or("/", |last| &path[..=last]);
        without_dots(&format!("{directory}{to}"), query)
    }
}

fn port(authority: &Authority, scheme: &str) -> Option<u16> {
    let default = || match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    authority.port_u16().or_else(default)
}

/// Removes dot segments (RFC 3986 §5.2.4).
fn without_dots(path: &str, query: Option<&str>) -> Option<PathAndQuery> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => _ = kept.pop(),
            _ => {
                kept.push(segment);
                continue;
            }
        }
        if last {
            kept.push("");
        }
    }
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{}{query}", kept.join("/")).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::semantics::kit::{headers, status};
    use proptest::prelude::*;

    fn resolved(reference: &str) -> Option<String> {
        let answer = headers(&[("location", reference)]);
        let also = also(&Uri::from_static("http://h.example/a/b/c"), &answer);
        also.first().map(PathAndQuery::to_string)
    }

    /// RFC 9111 §4.4.
    #[test]
    fn response_without_error_invalidates() {
        for (code, expected) in
            [(200, true), (204, true), (201, true), (303, true), (304, true), (400, false), (412, false), (500, false)]
        {
            assert_eq!(invalidates(status(code)), expected, "{code}");
        }
    }

    #[test]
    fn location_and_content_location_are_invalidated() {
        let answer = headers(&[("location", "/x"), ("content-location", "/y?z"), ("link", "/no")]);
        let also = also(&Uri::from_static("http://h/"), &answer);
        assert_eq!(also, ["/x", "/y?z"]);
    }

    /// RFC 3986 §5.4, with `http://h.example/a/b/c` as the base.
    #[test]
    fn location_references_are_resolved() {
        for (reference, expected) in [
            ("/x", "/x"),
            ("/x?y#z", "/x?y"),
            ("/x/../y", "/y"),
            ("x", "/a/b/x"),
            ("./x", "/a/b/x"),
            ("x/", "/a/b/x/"),
            ("../x", "/a/x"),
            ("..", "/a/"),
            (".", "/a/b/"),
            ("../../..", "/"),
            ("../../../../x", "/x"),
            ("?q", "/a/b/c?q"),
            ("?q=/../x:y", "/a/b/c?q=/../x:y"),
            ("x?y/../z", "/a/b/x?y/../z"),
            ("//H.example/x", "/x"),
            ("http://h.example/x?y", "/x?y"),
            ("HTTP://H.Example:80/x", "/x"),
            ("http://h.example", "/"),
            ("http://user@h.example/x", "/x"),
        ] {
            assert_eq!(resolved(reference).as_deref(), Some(expected), "{reference}");
        }
    }

    #[test]
    fn location_of_another_origin_is_not_invalidated() {
        for reference in [
            "https://h.example/x",
            "http://h.example:8080/x",
            "http://other/x",
            "//other/x",
            "http://h.example.other/x",
            "http://h.example@other/x",
            "mailto:x@h.example",
            "",
            "#z",
        ] {
            assert_eq!(resolved(reference), None, "{reference}");
        }
    }

    proptest! {
        #[test]
        fn location_resolves_to_a_path_without_dot_segments(reference in "[a:/.?#%@ -~]{0,24}") {
            if let Some(path) = resolved(&reference) {
                let path = path.split('?').next().expect("a path");
                prop_assert!(path.starts_with('/'));
                prop_assert!(!path.split('/').any(|segment| segment == "." || segment == ".."), "{}", path);
            }
        }
    }
}
