//! The routes: a guard for each kind of page, and handlers that state what may be shared.

use crate::{
    database,
    shop::{Shop, report},
};
use axum::{
    Router,
    extract::{FromRef, FromRequestParts, Path, Request, State},
    http::{
        HeaderMap, StatusCode, Uri,
        header::{ACCEPT_LANGUAGE, CACHE_CONTROL, COOKIE, SET_COOKIE, VARY},
        request::Parts,
    },
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use stampede_guard::{CacheStatus, Policy, StampedeGuard};
use std::time::Duration;

#[derive(Clone)]
struct App {
    guard: StampedeGuard,
    shop: Shop,
}

impl FromRef<App> for Shop {
    fn from_ref(app: &App) -> Self {
        app.shop.clone()
    }
}

pub(crate) fn app(guard: StampedeGuard, shop: Shop) -> Router {
    // Clones differ in their settings only: they share the store and running fetches.
    let for_a_minute = guard.clone().policy(Policy::fresh_for(Duration::from_secs(60)));
    let impatient = guard.clone().wait_timeout(Duration::from_secs(5));

    Router::new()
        .route("/", get(window).route_layer(for_a_minute))
        .route("/prices", get(prices).route_layer(impatient))
        .route("/products/{name}", get(product).post(reprice).route_layer(guard.clone()))
        .route("/products/{name}/order", post(order))
        .route("/basket", get(basket).route_layer(guard.clone()))
        .route("/rate", post(rate_changed))
        .route("/login", post(login))
        .route("/logout", post(logout))
        .layer(middleware::from_fn(log))
        .with_state(App { guard, shop })
}

/// States its own freshness lifetime, and that visitors with a session may share it.
async fn product(State(shop): State<Shop>, Path(name): Path<String>) -> Result<Response, Failure> {
    let Some(product) = shop.product(&name).await? else {
        return Err(StatusCode::NOT_FOUND.into());
    };
    let page = format!("{name}: {} EUR, {} left\n", f64::from(product.cents) / 100.0, product.stock);
    Ok(([(CACHE_CONTROL, "public, max-age=300, stale-if-error=3600")], page).into_response())
}

/// States no freshness lifetime, so the policy of its guard applies. There is one variant for each language.
async fn window(State(shop): State<Shop>, request: HeaderMap) -> Result<Response, Failure> {
    let german = request.get(ACCEPT_LANGUAGE).is_some_and(|languages| languages.as_bytes().starts_with(b"de"));
    let welcome = if german { "Willkommen! Tee" } else { "Welcome! Tea" };
    let page = format!("{welcome}: {} EUR\n", price_of_tea(&shop).await?);
    Ok(([(CACHE_CONTROL, "public"), (VARY, "accept-language")], page).into_response())
}

/// If its requests wait for longer than five seconds, they get a 503 with `Retry-After`.
async fn prices(State(shop): State<Shop>) -> Result<Response, Failure> {
    let (eur, rate) = (price_of_tea(&shop).await?, shop.rate().await?);
    let page = format!("tea: {eur} EUR, {:.2} USD\n", eur * rate);
    Ok(([(CACHE_CONTROL, "public, max-age=300")], page).into_response())
}

async fn price_of_tea(shop: &Shop) -> Result<f64, Failure> {
    let tea = shop.product("tea").await?.ok_or(StatusCode::NOT_FOUND)?;
    Ok(f64::from(tea.cents) / 100.0)
}

/// A response for one client only.
async fn basket(user: User, State(shop): State<Shop>) -> Result<Response, Failure> {
    let products = shop.basket(user.name.clone()).await?;
    Ok(([(CACHE_CONTROL, "private")], format!("{}: {}\n", user.name, products.join(", "))).into_response())
}

/// A POST that succeeds is noticed by the layer, which invalidates the same URL, the page of the product. The layer cannot
/// know which other pages show the price, so the handler invalidates them.
async fn reprice(
    user: User,
    State(app): State<App>,
    Path(name): Path<String>,
    cents: String,
) -> Result<Redirect, Failure> {
    if user.name != "owner" {
        return Err(StatusCode::FORBIDDEN.into());
    }
    let cents = cents.trim().parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    if !app.shop.reprice(name, cents).await? {
        return Err(StatusCode::NOT_FOUND.into());
    }
    for page in ["/", "/prices"] {
        report(app.guard.invalidate_url(&Uri::from_static(page)).await); // all languages
    }
    Ok(Redirect::to("/prices"))
}

/// The bank calls this when its rate changes.
async fn rate_changed(user: User, State(app): State<App>) -> Result<StatusCode, Failure> {
    if user.name != "owner" {
        return Err(StatusCode::FORBIDDEN.into());
    }
    app.shop.rate_changed().await;
    Ok(StatusCode::NO_CONTENT)
}

/// The page of the product shows the stock. Its URL is not that of the request.
async fn order(user: User, State(app): State<App>, Path(name): Path<String>) -> Result<Redirect, Failure> {
    let page = format!("/products/{name}").parse().map_err(|_| StatusCode::NOT_FOUND)?;
    if !app.shop.order(user.name, name).await? {
        return Err(StatusCode::CONFLICT.into());
    }
    report(app.guard.invalidate_url(&page).await);
    Ok(Redirect::to("/basket"))
}

/// A real shop would ask for a password.
async fn login(State(shop): State<Shop>, user: String) -> Result<impl IntoResponse, Failure> {
    let token = shop.login(user).await?;
    Ok(([(SET_COOKIE, format!("session={token}; HttpOnly; SameSite=Lax"))], Redirect::to("/basket")))
}

async fn logout(user: User, State(shop): State<Shop>) -> Result<Redirect, Failure> {
    shop.logout(user.token).await?;
    Ok(Redirect::to("/"))
}

/// The user of the session that the cookie names.
struct User {
    name: String,
    token: String,
}

impl FromRequestParts<App> for User {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let cookies = parts.headers.get(COOKIE).and_then(|cookies| cookies.to_str().ok()).unwrap_or_default();
        let token = cookies.split("; ").find_map(|cookie| cookie.strip_prefix("session="));
        let token = token.filter(|token| !token.is_empty()).ok_or(StatusCode::UNAUTHORIZED)?;
        let name = app.shop.user(token).await?.ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Self { name, token: token.to_owned() })
    }
}

/// Why a request was not answered as its client wished.
enum Failure {
    Status(StatusCode),
    Guard(stampede_guard::Error),
    Database(database::Error),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Status(status) => status.into_response(),
            Self::Guard(error) => error.into_response(),
            Self::Database(error) => {
                eprintln!("the database failed: {error}");
                StatusCode::SERVICE_UNAVAILABLE.into_response()
            }
        }
    }
}

impl From<StatusCode> for Failure {
    fn from(status: StatusCode) -> Self {
        Self::Status(status)
    }
}

impl From<stampede_guard::Error> for Failure {
    fn from(error: stampede_guard::Error) -> Self {
        Self::Guard(error)
    }
}

impl From<database::Error> for Failure {
    fn from(error: database::Error) -> Self {
        Self::Database(error)
    }
}

/// Runs outside of the guards, which add the cache status to the response as an extension.
async fn log(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    match response.extensions().get::<CacheStatus>() {
        Some(status) => println!("{method} {path}: {status:?}"),
        None => println!("{method} {path}: {}", response.status()),
    }
    response
}
