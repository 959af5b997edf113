//! Errors of a guard as responses of axum handlers.

use super::reply::error_head;
use crate::error::Error;
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};

/// With the feature `axum`, a handler may return the error of a guard.
///
/// The response is the one that the layer gives for the same error: an empty body, `Cache-Control: no-store`,
/// `Retry-After` if [`Error::retry_in`] is known, and the status of the kind:
///
/// | kind | status |
/// |---|---|
/// | `Origin` | the [recorded status](Error::status) if it is a 5xx, 408, 425 or 429, otherwise 502 |
/// | `InvalidUrl` | 502 |
/// | `TimedOut` | 504 |
/// | `Panicked` | 500 |
/// | `Store`, `Overloaded` | 503 |
///
/// The response shows nothing of the source of the error. A handler that wants another response for its
/// origin's own error matches on [`Error::origin`].
///
/// ```
/// # #[cfg(feature = "bincode")] {
/// use axum::{Json, Router, extract::{Path, State}, routing::get};
/// use stampede_guard::{Error, StampedeGuard};
///
/// async fn load(id: u64) -> Result<String, std::io::Error> {
///     match id {
///         0 => Err(std::io::ErrorKind::NotFound.into()),
///         _ => Ok(format!("user {id}")),
///     }
/// }
///
/// async fn user(State(guard): State<StampedeGuard>, Path(id): Path<u64>) -> Result<Json<String>, Error> {
///     Ok(Json(guard.fetch(format!("user:{id}"), async move || load(id).await).await?))
/// }
///
/// let app: Router = Router::new().route("/users/{id}", get(user)).with_state(StampedeGuard::in_memory());
/// # use axum::{body::Body, http::Request};
/// # use tower::ServiceExt;
/// # let ask = |uri: &str| app.clone().oneshot(Request::get(uri).body(Body::empty()).unwrap());
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # assert_eq!(ask("/users/1").await.unwrap().status(), 200);
/// # assert_eq!(ask("/users/0").await.unwrap().status(), 502);
/// # });
/// # }
/// ```
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        error_head(&self).map(|()| Body::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{BoxError, ErrorKind};
    use axum::http::header::{CACHE_CONTROL, RETRY_AFTER};
    use http_body::Body as _;
    use std::time::Duration;

    #[test]
    fn errors_get_the_status_and_fields_of_a_rejection() {
        let cause = || -> BoxError { "as intended".into() };
        let cases = [
            (Error::origin_failed(cause()), 502, None),
            (Error::new(ErrorKind::InvalidUrl, "no host"), 502, None),
            (Error::new(ErrorKind::TimedOut, "late"), 504, None),
            (Error::new(ErrorKind::Panicked, "panic"), 500, None),
            (Error::store_down(cause()), 503, Some("1")),
            (Error::wait_timed_out(), 503, Some("1")),
            (Error::reported(ErrorKind::Origin, 504, Duration::from_millis(1001)), 504, Some("2")),
            (Error::reported(ErrorKind::Origin, 404, Duration::from_secs(3)), 502, Some("3")),
            (Error::reported(ErrorKind::Origin, 0, Duration::from_secs(3)), 502, Some("3")),
            (Error::reported(ErrorKind::TimedOut, 0, Duration::from_secs(3)), 504, Some("3")),
            (Error::origin_failed(cause()).repeated(Duration::from_secs(3)), 502, Some("3")),
        ];
        for (error, status, retry_after) in cases {
            let response = error.clone().into_response();
            assert_eq!(response.status(), status, "{error}");
            assert_eq!(response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap()), retry_after);
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
            assert!(response.body().is_end_stream());
        }
    }
}
