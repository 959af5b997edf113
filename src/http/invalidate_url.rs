//! Invalidation of a URL on behalf of the application.

use super::key::Target;
use crate::{
    engine::resource::Resource,
    error::{Error, ErrorKind},
    guard::StampedeGuard,
};
use http::Uri;

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
        let target = Target::of_uri(url);
        if !target.is_absolute() && !self.config().http.ignore_host {
            let what = format!(
                "`{url}` names no host, which is part of the cache key; add one, or set `HttpOptions::ignore_host`"
            );
            return Err(Error::new(ErrorKind::InvalidUrl, what));
        }
        match self.url(target) {
            Some(url) => url.invalidate().await,
            None => Ok(()),
        }
    }

    /// Returns the resource that stands for all responses to the target. `None` if it is too long, because nothing is
    /// stored of such a target.
    pub(super) fn url(&self, target: Target<'_>) -> Option<Resource> {
        (!target.exceeds_limit()).then(|| target.any_resource(self))
    }
}
