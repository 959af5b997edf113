//! What may have changed: unsafe methods, and resources that the application names (RFC 9111 §4.4).

use super::{
    key::{Class, Target},
    origin,
    semantics::invalidation,
    service::{GuardService, Stamped},
    status,
};
use crate::{
    engine::{CacheVerdict, Place},
    error::{Error, ErrorKind},
    guard::StampedeGuard,
};
use futures_util::future::{join_all, try_join_all};
use http::{Request, Response, Uri};
use tower_service::Service;

impl<S> GuardService<S> {
    /// Sends on what may change the resource. When its client hears that it has, no fetch that began before will land.
    pub(super) async fn change<Req, B>(self, request: Request<Req>) -> Stamped<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>>,
    {
        let target = Target::of(&request);
        let (uri, mut places) = (target.uri(), self.guard.places(target));
        let fields = request.headers().clone();
        let noted = origin::alone(self.inner, request, "method").await?;
        if invalidation::invalidates(noted.response.status()) {
            if let Some(uri) = &uri {
                for path in invalidation::also(uri, noted.response.headers()) {
                    places.extend(self.guard.places(Target::of_uri(uri).to(path.as_str()).with(&fields)));
                }
            }
            // What is not acknowledged is tried again behind; the client's change has been made all the same.
            join_all(places.into_iter().map(Place::invalidate)).await;
        }
        Ok(status::stamp(noted, CacheVerdict::Bypassed, None))
    }
}

impl StampedeGuard {
    /// Drops what is stored of a URL, every variant of it, and refuses every response to it that was asked for before.
    /// For handlers that change what other URLs show; what is changed by a request to the URL itself is noticed.
    ///
    /// The URL is absolute, as its clients write it: `https://example.org/products/7?lang=en`. What one server sees of
    /// it is often `http`, since TLS ends before: so both schemes are dropped. With
    /// [`any_host`](crate::http::Rules::any_host) a path will do. Fields that [`Rules`](crate::http::Rules) put into the
    /// key are taken to be absent.
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
    /// [`ErrorKind::Url`](crate::ErrorKind::Url) for a URL without authority, and as
    /// [`invalidate`](Self::invalidate).
    pub async fn invalidate_url(&self, url: &Uri) -> Result<(), Error> {
        let target = Target::of_uri(url);
        if !target.is_absolute() && !self.config().rules.any_host {
            let what =
                format!("`{url}` names no host, which is part of the key: give it one, or see `Rules::any_host`");
            return Err(Error::new(ErrorKind::Url, what));
        }
        try_join_all(self.places(target).into_iter().map(Place::invalidate)).await.map(drop)
    }

    /// Where answers to a GET and to a HEAD of that target are, over both schemes: one server sees `https` in the requests
    /// of HTTP/2, and none in those of HTTP/1.1.
    fn places(&self, target: Target<'_>) -> Vec<Place> {
        let over = |scheme| [Class::Get, Class::Head].map(|class| target.over(scheme).key(class, &self.config().rules));
        let schemes = ["http", "https"].into_iter().filter(|_| !target.is_long());
        schemes.flat_map(over).map(|key| self.place(key)).collect()
    }
}
