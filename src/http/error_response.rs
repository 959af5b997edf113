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
/// | `Origin`, `Codec`, `InvalidUrl` | 502 |
/// | `RecentlyFailed` | the recorded status if it is a 5xx, otherwise 503 |
/// | `TimedOut` | 504 |
/// | `Panicked` | 500 |
/// | `Store`, `Overloaded` | 503 |
///
/// The response tells the client nothing of the source of the error. A handler that wants another response for its
/// origin's own error matches on [`Error::origin`].
///
/// ```
/// use axum::{Json, Router, extract::{Path, State}, http::Request, routing::get};
/// use stampede_guard::{Error, StampedeGuard};
/// # use axum::{body::Body, http::header};
/// # use tower::ServiceExt;
///
/// async fn load(id: u64) -> Result<String, std::io::Error> {
/// #   if id == 0 { return Err(std::io::ErrorKind::NotFound.into()) }
///     Ok(format!("user {id}"))
/// }
///
/// async fn user(State(guard): State<StampedeGuard>, Path(id): Path<u64>) -> Result<Json<String>, Error> {
///     Ok(Json(guard.fetch(format!("user:{id}"), async move || load(id).await).await?))
/// }
///
/// let app: Router = Router::new().route("/users/{id}", get(user)).with_state(StampedeGuard::in_memory());
/// # #[tokio::main(flavor = "current_thread")] async fn main_(app: Router) {
/// # let ask = |uri: &str| app.clone().oneshot(Request::get(uri).body(Body::empty()).unwrap());
/// # assert_eq!(ask("/users/1").await.unwrap().status(), 200);
/// # assert_eq!(ask("/users/0").await.unwrap().status(), 502);
/// # // The marker of the failed fetch is left, and says when to retry.
/// # let again = ask("/users/0").await.unwrap();
/// # assert_eq!((again.status().as_u16(), &again.headers()[header::RETRY_AFTER]), (503, &"1".parse().unwrap()));
/// # }
/// # main_(app);
/// ```
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        error_head(&self).map(|()| Body::empty())
    }
}
