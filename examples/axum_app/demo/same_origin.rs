//! Refuses requests that another site sends through a visitor's browser, and pages that it serves under its own name.

use axum::{
    extract::Request,
    http::{
        HeaderMap, StatusCode, Uri,
        header::{HOST, ORIGIN},
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::net::IpAddr;

/// Lets a request pass if its `Host` is an IP address or `localhost`. Another name may belong to a site that lets it
/// resolve to this server (DNS rebinding): the browser then takes this server for that site, and `Origin` equals `Host`.
pub(super) async fn require_local_name(request: Request, next: Next) -> Response {
    if !has_local_name(request.headers()) {
        return (StatusCode::FORBIDDEN, "open this page by its IP address or as localhost").into_response();
    }
    next.run(request).await
}

fn has_local_name(headers: &HeaderMap) -> bool {
    let host: Option<Authority> = headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    host.is_some_and(|host| {
        let name = host.host();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
    })
}

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
