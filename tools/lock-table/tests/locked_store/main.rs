//! The cache guard over every lock recipe whose guarantees it accepts.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

/// Lists the accepted recipes as `name constructor;`. `recipes!(m { .. })` expands to `m! { { .. } <the list> }`.
macro_rules! recipes {
    ($then:ident $rest:tt) => {
        $then! { $rest
            set_px |_| SetPx;
            fenced_lock |_| FencedLock;
            set_membership |_| SetMembership::with_expiry();
            getset |_| GetSet::new();
            rename |_| Rename;
            watch |at| Watch::new(at.client());
            exists_setex |_| ExistsSetex;
            setnx_expire |at| SetnxExpire::new(at.client());
            redlock |at| Redlock::with(at.others()).server_timeout(30 * SECOND);
        }
    };
}

/// Expands to one module per recipe, with one test per function in the braces.
macro_rules! cases {
    (in $name:ident { $($case:ident)* }) => {
        mod $name {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case(stringify!($name)).await;
                }
            )*
        }
    };
    ($cases:tt $($name:ident $make:expr;)*) => { $(cases! { in $name $cases })* };
}

#[path = "../../../../tests/servers/calls.rs"]
mod calls;
mod contract;
mod fence;
mod herds;
#[path = "../../../../tests/store/large_hits.rs"]
mod large_hits;
mod leaders;
mod near;
#[path = "../../../../tests/servers/rights.rs"]
mod rights;
mod servers;
#[path = "../../../../tests/store/suite.rs"]
mod suite;

use lock_table::{
    Counter, ExistsSetex, GetSet, LabRecipe, LockedStore, Redlock, Rename, SetMembership, SetnxExpire, Watch,
};
use serde::{Deserialize, Serialize};
use stampede_guard::{
    StampedeGuard,
    lock::{FencedLock, IntoEndpoint, SetPx},
    store::{CacheKey, Inbox, LeaseReply, LeaseRequest, Store, Token},
};
use stampede_guard_support as support;
use std::{sync::OnceLock, time::Duration};
use support::{Down, MS, RedisServer, SECOND, eventually, never};

macro_rules! stores {
    ({} $($name:ident $make:expr;)*) => {
        const RECIPES: &[&str] = &[$(stringify!($name)),*];

        /// Returns the store over the recipe of that name. A name can be passed to another process.
        fn locked(recipe: &str, at: &At) -> LockedStore {
            match recipe {
                $(stringify!($name) => made(at, $make),)*
                _ => panic!("there is no recipe {recipe}"),
            }
        }
    };
}

recipes!(stores {});

/// Returns the store that the tests of large hits are about.
fn store_over(redis: impl IntoEndpoint) -> impl Store {
    LockedStore::new(redis, SetPx).expect("the recipe is accepted")
}

fn made<R: LabRecipe>(at: &At, make: impl Fn(&At) -> R) -> LockedStore {
    LockedStore::new(at.client(), make(at)).expect("the recipe is accepted")
}

/// URLs of the servers.
#[derive(Clone, Serialize, Deserialize)]
struct At {
    urls: [String; 3],
}

impl At {
    fn shared() -> Self {
        let servers = others();
        Self { urls: [RedisServer::shared(), &servers[0], &servers[1]].map(RedisServer::url) }
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(self.urls[0].as_str()).expect("a client")
    }

    fn others(&self) -> [redis::Client; 2] {
        [1, 2].map(|n| redis::Client::open(self.urls[n].as_str()).expect("a client"))
    }
}

/// Returns the further servers of `Redlock`. The first server stores the entries.
fn others() -> &'static [RedisServer; 2] {
    static OTHERS: OnceLock<[RedisServer; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| RedisServer::start()))
}

/// Returns guards that stand for processes. `span` is the TTL of a lock without its holder.
async fn guards<const N: usize>(recipe: &str, namespace: &str, span: Duration) -> [StampedeGuard; N] {
    let stores = [(); N].map(|()| locked(recipe, &At::shared()).hold(span));
    for store in &stores {
        connected(store).await;
    }
    stores.map(|store| guard(store, recipe, namespace, span))
}

fn guard(store: LockedStore, recipe: &str, namespace: &str, span: Duration) -> StampedeGuard {
    StampedeGuard::new(store).namespace(format!("{namespace}-{recipe}")).lease_ttl(span).store_timeout(30 * SECOND)
}

/// Waits until the store has all its connections and its subscription, so that a busy machine does not look like an
/// outage.
async fn connected(store: &LockedStore) {
    let at = CacheKey::new("warm-up", 0, format!("{:?}", Token::unique(Inbox::unique())));
    let _listener = store.listen(&at);
    eventually("the store is connected and subscribed", async || {
        let [first, second] = [(); 2].map(|()| Token::unique(Inbox::unique()));
        let ask = |token| store.get_or_lease(&at, LeaseRequest::new(token, 30 * SECOND));
        let hears =
            ask(first).await.is_ok() && matches!(ask(second).await, Ok(LeaseReply::Wait { registered: true, .. }));
        for token in [first, second] {
            let _ = store.release(&at, token, None).await;
        }
        hears
    })
    .await;
}

#[test]
fn locked_store_refuses_recipe_not_freed_by_crash() {
    let at = At { urls: ["redis://127.0.0.1:1"; 3].map(str::to_owned) };
    let refused = [LockedStore::new(at.client(), Counter), LockedStore::new(at.client(), SetMembership::default())]
        .map(|refused| refused.expect_err("a crash would block the lock forever").to_string());
    assert!(refused[0].contains("counter"), "{}", refused[0]);
    assert!(refused[1].contains("SetMembership::with_expiry()"), "{}", refused[1]);
}
