//! Invalidation of stored responses: by the application, and by unsafe requests (RFC 9111 §4.4).

use super::{
    annotation::{Finished, Recorder, StatusNote, Storage},
    forward::forward_uncached,
    key::{Target, layout_of_responses},
    semantics::forwarded::without_default_port,
    service::HttpCache,
};
use crate::{
    cache_status::CacheStatus,
    engine::resource::Resource,
    error::{Error, ErrorKind},
    guard::StampedeGuard,
    key::Key,
    telemetry::FrontEnd,
    uncached::Uncached,
};
use futures_util::future::join_all;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header, uri::PathAndQuery};
use std::sync::atomic::Ordering::Relaxed;
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

    /// Refuses the key of a page of this layer, which is not the key of a value.
    pub(crate) fn refuse_url(&self, key: &Key) -> Result<(), Error> {
        let is_url = ["/", "http://", "https://"].iter().any(|start| key.primary().starts_with(start.as_bytes()));
        let what = "the key is a URL, and the guard is a layer: invalidate pages with `invalidate_url`";
        let is_refused = is_url && self.engine.routes.is_layer.load(Relaxed);
        if is_refused { Err(Error::new(ErrorKind::InvalidUrl, what)) } else { Ok(()) }
    }

    /// Returns the resource that stands for all responses to the target. `None` if it is too long, because nothing is
    /// stored of such a target.
    fn url(&self, target: Target<'_>) -> Option<Resource> {
        if target.exceeds_limit() {
            return None;
        }
        let key = target.key_of_any_scheme(&self.config.http);
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

/// Returns the other resources to invalidate: `Location` and `Content-Location`, if they are absolute paths or URLs. Only
/// resources of the target's own origin are returned, because no origin may invalidate responses of another.
fn also(target: &Uri, answer: &HeaderMap) -> Vec<PathAndQuery> {
    let origin = |uri: &Uri| {
        let (scheme, authority) = (uri.scheme_str()?, uri.authority()?.as_str().to_ascii_lowercase());
        Some((scheme.to_owned(), without_default_port(authority.as_bytes(), scheme).to_vec()))
    };
    let lines = [header::LOCATION, header::CONTENT_LOCATION].into_iter().flat_map(|field| answer.get_all(field));
    let uris = lines.filter_map(|line| Uri::try_from(line.as_bytes()).ok());
    let ours = uris.filter(|uri| uri.authority().is_none() || origin(uri) == origin(target));
    ours.filter_map(|uri| uri.into_parts().path_and_query).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::semantics::kit::{headers, status};

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

    #[test]
    fn locations_are_absolute_paths_and_urls() {
        for (reference, expected) in [
            ("/x", "/x"),
            ("/x?y#z", "/x?y"),
            ("http://h.example/x?y", "/x?y"),
            ("HTTP://H.Example:80/x", "/x"),
            ("http://h.example", "/"),
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
            "http://h.example.other/x",
            "http://h.example@other/x",
            "mailto:x@h.example",
            "",
            "#z",
            "x",
            "x/y",
            "../x",
            "?q",
        ] {
            assert_eq!(resolved(reference), None, "{reference}");
        }
    }
}
