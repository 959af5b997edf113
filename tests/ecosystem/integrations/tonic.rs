//! gRPC: a tonic service that answers through a view, and a tonic client whose calls are cached by key.
//!
//! The messages are prost's. The view keeps them in protobuf, through a codec of its own. [`keyed`] keeps them with
//! serde, whose derives `tonic_prost_build` adds with `type_attribute(".", "#[derive(serde::Serialize, ..)]")`.
//!
//! [`keyed`]: StampedeGuard::keyed

use self::bank::{
    rates_client::RatesClient,
    rates_server::{Rates, RatesServer},
};
use crate::{codecs::Protobuf, kit::BOUND};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use stampede_guard::{Cache, Error, ErrorKind, FailureClass, Key, Policy, StampedeGuard};
use stampede_guard_support::{Origin, RedisServer};
use std::time::Duration;
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Server, server::TcpIncoming},
};
use tower::{Service, ServiceBuilder, ServiceExt};

/// `rpc Rate (RateRequest) returns (Rate);`
mod bank {
    #![allow(clippy::all, missing_debug_implementations, unreachable_pub, unused_qualifications, reason = "generated")]
    use super::{Rate, RateRequest};
    include!(concat!(env!("OUT_DIR"), "/bank.Rates.rs"));
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateRequest {
    #[prost(string, tag = "1")]
    currency: String,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
pub(super) struct Rate {
    #[prost(double, tag = "1")]
    euros: f64,
}

/// The service. Each rate is asked for once in the whole fleet, however many clients need it.
struct CachedRates {
    bank: Bank,
    rates: Cache<Rate>,
}

impl CachedRates {
    fn new(guard: &StampedeGuard, bank: Bank) -> Self {
        let guard = guard.clone().classify(class_of);
        let rates = guard.cache_with("rate", Protobuf(1)).policy(Policy::fresh_for(Duration::from_secs(60)));
        Self { bank, rates }
    }
}

#[tonic::async_trait]
impl Rates for CachedRates {
    async fn rate(&self, request: Request<RateRequest>) -> Result<Response<Rate>, Status> {
        let RateRequest { currency } = request.into_inner();
        if currency.is_empty() {
            return Err(Status::invalid_argument("which currency?")); // no key may be empty
        }
        let (bank, key) = (self.bank.clone(), currency.clone());
        let rate = self.rates.fetch(key, async move || bank.rate(&currency).await).await;
        rate.map(Response::new).map_err(|error| status_of(&error))
    }
}

/// Returns the class of a failed fetch: what is wrong with the request alone says nothing about the origin, and must not
/// keep other callers from it.
fn class_of(error: &(dyn std::error::Error + 'static)) -> FailureClass {
    match Error::find::<Status>(error).map(Status::code) {
        Some(Code::NotFound | Code::InvalidArgument | Code::PermissionDenied) => FailureClass::Answer,
        _ => FailureClass::OriginDown,
    }
}

/// Returns the status of a call that the guard could not answer: that of the fetch, otherwise one of the
/// guard, with the time after which tonic and other clients may try again.
fn status_of(error: &Error) -> Status {
    if let Some(status) = error.origin_cloned::<Status>() {
        return status;
    }
    let code = match error.kind() {
        _ if error.is_timeout() => Code::DeadlineExceeded,
        _ if error.is_overloaded() => Code::ResourceExhausted,
        ErrorKind::Origin | ErrorKind::Store => Code::Unavailable,
        _ => Code::Internal,
    };
    let mut status = Status::new(code, error.to_string());
    if let Some(wait) = error.retry_in() {
        status.metadata_mut().insert("grpc-retry-pushback-ms", (wait.as_millis() as u64).into());
    }
    status
}

/// Returns a client whose answers are cached: a tower service of messages.
fn cached_client(
    guard: &StampedeGuard,
    channel: Channel,
) -> impl Service<RateRequest, Response = Rate, Error = Error, Future: Send> + Clone + use<> {
    let rates = RatesClient::new(channel);
    let call = move |request: RateRequest| {
        let mut rates = rates.clone();
        async move { rates.rate(request).await.map(Response::into_inner) }
    };
    let key = |request: &RateRequest| Some(Key::new(("rates.client", &request.currency)));
    ServiceBuilder::new().layer(guard.keyed(key)).service_fn(call)
}

/// The origin: a bank that knows one currency, and is closed on some days.
#[derive(Clone)]
struct Bank {
    calls: Origin,
    is_open: bool,
}

impl Bank {
    async fn rate(&self, currency: &str) -> Result<Rate, Status> {
        self.calls.work(Duration::from_millis(50)).await;
        match currency {
            _ if !self.is_open => Err(Status::unavailable("the bank is closed")),
            "usd" => Ok(Rate { euros: 0.92 }),
            _ => Err(Status::not_found(format!("no currency {currency}"))),
        }
    }
}

/// Serves until the returned `JoinSet` is dropped, and returns a channel to the server.
async fn serve(service: CachedRates) -> (Channel, JoinSet<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let mut server = JoinSet::new();
    server.spawn(async move {
        let router = Server::builder().add_service(RatesServer::new(service));
        router.serve_with_incoming(TcpIncoming::from(listener)).await.expect("it serves");
    });
    (Channel::from_shared(url).expect("a URL").connect().await.expect("it listens"), server)
}

fn request(currency: &str) -> RateRequest {
    RateRequest { currency: currency.to_owned() }
}

fn bank(is_open: bool) -> Bank {
    Bank { calls: Origin::new(), is_open }
}

fn over(redis: &RedisServer) -> StampedeGuard {
    StampedeGuard::new(redis.client()).store_timeout(Duration::from_secs(30))
}

/// Two servers over one Redis: one call of the bank, and the other server reads the message from Redis.
#[tokio::test]
async fn grpc_services_of_a_fleet_share_a_rate() {
    let (redis, bank) = (RedisServer::start(), bank(true));
    let mut channels = Vec::new();
    for _ in 0..2 {
        channels.push(serve(CachedRates::new(&over(&redis), bank.clone())).await);
    }
    let asked = (0..20).map(|n| {
        let mut client = RatesClient::new(channels[n % 2].0.clone());
        async move { client.rate(request("usd")).await }
    });
    for rate in timeout(BOUND, join_all(asked)).await.expect("in time") {
        assert_eq!(rate.expect("a rate").into_inner(), Rate { euros: 0.92 });
    }
    assert_eq!(bank.calls.calls(), 1);
}

/// A status of the bank that is an answer reaches each caller unchanged, and the bank is asked again. One that means
/// that it is down is repeated by the guard until the marker of the failure ends: in another process without its text.
#[tokio::test]
async fn grpc_errors_of_the_guard_have_their_status() {
    let (redis, open, closed) = (RedisServer::start(), bank(true), bank(false));
    let (channel, _server) = serve(CachedRates::new(&over(&redis), open.clone())).await;
    let mut client = RatesClient::new(channel);
    for calls in 1..=2 {
        let status = client.rate(request("gold")).await.expect_err("no such currency");
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no currency gold"));
        assert_eq!(open.calls.calls(), calls);
    }
    assert_eq!(client.rate(request("")).await.expect_err("no currency").code(), Code::InvalidArgument);

    let patient = || over(&redis).namespace("closed").failure_ttl(Duration::from_secs(60));
    let guard = patient();
    let (channel, _server) = serve(CachedRates::new(&guard, closed.clone())).await;
    let (elsewhere, _server_elsewhere) = serve(CachedRates::new(&patient(), closed.clone())).await;
    let status = RatesClient::new(channel).rate(request("usd")).await.expect_err("closed");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the bank is closed"));
    guard.drain().await;
    let status = RatesClient::new(elsewhere).rate(request("usd")).await.expect_err("the marker");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the fetch failed"));
    let wait = status.metadata().get("grpc-retry-pushback-ms").and_then(|wait| wait.to_str().ok()?.parse::<u64>().ok());
    assert!(wait.is_some_and(|wait| (1..=60_000).contains(&wait)), "{status:?}");
    assert_eq!(closed.calls.calls(), 1);
}

/// The server has no guard here. The client's process asks it once, and the error of a call is found as the status it was.
#[tokio::test]
async fn grpc_client_by_key_calls_its_server_once() {
    let (bank, guard) = (bank(true), StampedeGuard::in_memory());
    let (channel, _server) = serve(CachedRates::new(&StampedeGuard::in_memory().bypass(true), bank.clone())).await;
    let client = cached_client(&guard, channel);
    for rate in join_all((0..20).map(|_| client.clone().oneshot(request("usd")))).await {
        assert_eq!(rate.expect("a rate"), Rate { euros: 0.92 });
    }
    assert_eq!(bank.calls.calls(), 1);
    let error = client.oneshot(request("gold")).await.expect_err("no such currency");
    assert_eq!(error.origin::<Status>().map(Status::code), Some(Code::NotFound));
}
