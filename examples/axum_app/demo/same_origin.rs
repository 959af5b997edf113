//! Refuses requests that another site sends through a visitor's browser.

use axum::{
    extract::Request,
    http::{
        HeaderMap, StatusCode, Uri,
        header::{HOST, ORIGIN},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Lets a request pass if no browser says that another origin sends it. Programs such as curl say nothing.
pub(super) async fn require(request: Request, next: Next) -> Response {
    if is_foreign(request.headers()) {
        return (StatusCode::FORBIDDEN, "this request comes from another site").into_response();
    }
    next.run(request).await
}

fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return true;
    }
    let Some(origin) = headers.get(ORIGIN) else { return false };
    // An opaque origin (`null`) has no authority.
    let origin: Option<Uri> = origin.to_str().ok().and_then(|origin| origin.parse().ok());
    let authority = origin.as_ref().and_then(Uri::authority).map(|authority| authority.as_str().as_bytes());
    authority.is_none() || authority != headers.get(HOST).map(|host| host.as_bytes())
}
