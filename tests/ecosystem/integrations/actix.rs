//! actix-web: a handler that answers through a view. The layer is for tower's services, and actix-web has its own, so the
//! cached thing is the value and not the response.

use crate::kit::{BOUND, at_rest};
use actix_web::{
    App, HttpResponse, HttpResponseBuilder, HttpServer, Responder, ResponseError,
    http::{StatusCode, header},
    web,
};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use stampede_guard::{Cache, ErrorKind, FetchContext, FetchOutcome, Policy, StampedeGuard};
use stampede_guard_support::Origin;
use std::{fmt, io, net::SocketAddr, time::Duration};
use tokio::time::timeout;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct User {
    id: u64,
    name: String,
}

/// What the handlers need. It is created once, and each worker gets a clone: a guard that is created within the closure of
/// `HttpServer::new` would be another guard for each worker, with fetches of its own.
#[derive(Clone)]
struct Users {
    database: Database,
    cache: Cache<Option<User>>,
}

impl Users {
    fn new(guard: &StampedeGuard, database: Database) -> Self {
        let policy = Policy::fresh_for(Duration::from_secs(60)).absent_for(Duration::from_secs(5));
        Self { database, cache: guard.cache("user").policy(policy) }
    }
}

async fn user(id: web::Path<u64>, users: web::Data<Users>) -> Result<impl Responder, Unanswered> {
    let (id, database) = (*id, users.database.clone());
    let load = async move |_: FetchContext<Option<User>>| database.user(id).await.map(FetchOutcome::new);
    let user = users.cache.entry(id).timeout(Duration::from_secs(5)).answer(load).await?;
    let age = (header::AGE, user.age().as_secs());
    Ok(match user.into_value() {
        Some(user) => HttpResponse::Ok().insert_header(age).json(user),
        None => HttpResponse::NotFound().insert_header(age).finish(),
    })
}

/// The error of the guard as a response.
#[derive(Debug)]
struct Unanswered(stampede_guard::Error);

impl From<stampede_guard::Error> for Unanswered {
    fn from(error: stampede_guard::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ResponseError for Unanswered {
    fn status_code(&self) -> StatusCode {
        match self.0.kind() {
            ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Overloaded | ErrorKind::Store => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Origin => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponseBuilder::new(self.status_code());
        if let Some(wait) = self.0.retry_in() {
            response.insert_header((header::RETRY_AFTER, wait.as_secs_f64().ceil() as u64));
        }
        response.body(self.to_string()) // without its cause, which is not for clients
    }
}

/// A database that counts its calls, has the user 1, and fails for 13.
#[derive(Clone)]
struct Database(Origin);

impl Database {
    async fn user(&self, id: u64) -> io::Result<Option<User>> {
        self.0.work(Duration::from_millis(50)).await;
        match id {
            1 => Ok(Some(User { id, name: "Ann".to_owned() })),
            13 => Err(io::Error::other("the table is locked")),
            _ => Ok(None),
        }
    }
}

/// Serves on two workers until the test ends, and returns the address.
fn serve(users: Users) -> SocketAddr {
    let app = move || App::new().app_data(web::Data::new(users.clone())).route("/users/{id}", web::get().to(user));
    let server = HttpServer::new(app).workers(2).disable_signals().bind(("127.0.0.1", 0)).expect("a free port");
    let address = server.addrs()[0];
    tokio::spawn(server.run());
    address
}

async fn get(address: SocketAddr, id: u64) -> (u16, reqwest::header::HeaderMap, String) {
    let response = timeout(BOUND, reqwest::get(format!("http://{address}/users/{id}"))).await.expect("in time");
    let response = response.expect("a response");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    (status, headers, response.text().await.expect("a text"))
}

/// Each request has a connection of its own, so that both workers serve some.
#[tokio::test]
async fn actix_workers_share_one_fetch() {
    let (guard, database) = (StampedeGuard::in_memory(), Database(Origin::new()));
    let address = serve(Users::new(&guard, database.clone()));
    for id in [1, 2] {
        for (status, headers, body) in join_all((0..20).map(|_| get(address, id))).await {
            let expected = if id == 1 { (200, r#"{"id":1,"name":"Ann"}"#) } else { (404, "") };
            assert_eq!((status, &*body), expected);
            assert!(headers.contains_key("age"), "{headers:?}");
        }
        at_rest(&guard).await;
        assert_eq!(database.0.calls() as u64, id, "one call for each user, also for one that does not exist");
    }
}

#[tokio::test]
async fn actix_handler_says_why_it_has_no_answer() {
    let guard = StampedeGuard::in_memory().failure_ttl(Duration::from_secs(60));
    let address = serve(Users::new(&guard, Database(Origin::new())));
    let (status, _, body) = get(address, 13).await;
    assert_eq!((status, &*body), (502, "the fetch failed"));
    at_rest(&guard).await;
    let (status, headers, body) = get(address, 13).await;
    assert_eq!((status, &*body), (502, "the fetch failed"));
    let wait: Option<u64> = headers.get("retry-after").and_then(|wait| wait.to_str().ok()?.parse().ok());
    assert!(wait.is_some_and(|wait| (1..=60).contains(&wait)), "{headers:?}");
}
