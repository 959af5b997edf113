//! Hits in the process on one thread and on two. The threads share what a hit writes: locks, reference counts.

use crate::{
    Extent,
    kit::{self, head, median, row},
    support::{RedisServer, eventually},
};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, Uri, header::CACHE_CONTROL};
use http_body_util::Full;
use stampede_guard::{MemoryStore, NearCacheConfig, StampedeGuard};
use std::{
    convert::Infallible,
    hint::{black_box, spin_loop},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};
use tower::{Layer, Service, service_fn};

/// One hit of the key with this number. Each thread has a closure of its own.
type Hit<'a> = Box<dyn FnMut(usize) + 'a>;

pub(crate) async fn measure(extent: Extent) {
    let server = RedisServer::start();
    let embedded = kit::guard(MemoryStore::default());
    let near = kit::guard(server.client()).near_cache(NearCacheConfig::max_bytes(64 << 20).max_age(AN_HOUR));
    for key in names() {
        embedded.cache(VIEW).entry(&*key).fetch_arc(value).await.expect("fetched");
        embedded.layer(service_fn(page)).call(request(&uri(&key))).await.expect("infallible");
        near.cache(VIEW).entry(&*key).fetch_arc(value).await.expect("fetched");
    }
    embedded.drain().await;
    near.drain().await;
    // The first reads come before the server has turned tracking on, and are not kept.
    eventually("the near cache keeps a copy of each key", async || {
        let before = near.stats().near_hits;
        for key in names() {
            near.cache(VIEW).entry(&*key).fetch_arc(value).await.expect("fetched");
        }
        near.stats().near_hits - before == names().len() as u64
    })
    .await;

    head(&[
        "hit",
        "keys",
        "ns on one thread",
        "ns on each of two",
        "throughput of two over one",
        "undisturbed rounds of two",
    ]);
    let typed = |guard| move || fetch_arc(guard);
    figures(extent, "embedded, `fetch_arc`", typed(&embedded));
    figures(extent, "embedded, `fetch`", || fetch(&embedded));
    figures(extent, "embedded, HTTP layer", || http_layer(&embedded));
    figures(extent, "near, `fetch_arc`", typed(&near));
}

/// Prints the rows of one kind of hit: with keys of its own for each thread, and with one key for all.
fn figures<'a>(extent: Extent, name: &str, hit: impl Fn() -> Hit<'a> + Sync) {
    for (keys, label) in [(KEYS, "of its own"), (1, "one for all")] {
        let mut nanos = [Vec::new(), Vec::new()];
        // Alternating, because the speed of a shared machine changes within seconds.
        for round in 0..extent.times(ROUNDS) * 2 {
            nanos[round % 2].extend(nanos_per_hit(1 + round % 2, keys, &hit));
        }
        let rounds = nanos[1].len();
        let [one, two] = nanos.map(|nanos| if nanos.is_empty() { f64::NAN } else { median(nanos) });
        let cells = [format!("{one:.0}"), format!("{two:.0}"), format!("{:.2}", 2.0 * one / two), rounds.to_string()];
        row(&[&[name.to_owned(), label.to_owned()], &cells[..]].concat());
    }
}

/// Returns the time of one hit, if this number of threads hit at the same time. `None` if a thread lost its core
/// meanwhile, because the other thread then had the shared memory to itself.
fn nanos_per_hit<'a>(threads: usize, keys: usize, hit: &(impl Fn() -> Hit<'a> + Sync)) -> Option<f64> {
    let ready = AtomicUsize::new(0);
    let run = |thread: usize| {
        let (mut hit, first) = (hit(), if keys == 1 { 0 } else { thread * keys });
        hit(first);
        ready.fetch_add(1, SeqCst);
        while ready.load(SeqCst) < threads {
            spin_loop();
        }
        let (began, mut batches) = (Instant::now(), 0);
        let mut last = began;
        while last - began < ROUND {
            (0..BATCH).for_each(|n| hit(first + (batches * BATCH + n) % keys));
            batches += 1;
            let now = Instant::now();
            if now - last > PAUSE {
                return None;
            }
            last = now;
        }
        Some((began, (last - began).as_nanos() as f64 / (batches * BATCH) as f64))
    };
    let run = &run;
    let runs: Option<Vec<_>> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let own = run(0);
        [own].into_iter().chain(others.into_iter().map(|other| other.join().expect("no panic"))).collect()
    });
    let runs = runs?;
    let starts = || runs.iter().map(|(began, _)| *began);
    let together = starts().max()? - starts().min()? < PAUSE;
    together.then(|| threads as f64 / runs.iter().map(|(_, nanos)| 1.0 / nanos).sum::<f64>())
}

fn fetch_arc(guard: &StampedeGuard) -> Hit<'_> {
    let (names, values) = (names(), guard.cache(VIEW));
    Box::new(move |key| {
        let hit = values.entry(&*names[key]).fetch_arc(value).now_or_never();
        drop(black_box(hit.expect("a hit")));
    })
}

fn fetch(guard: &StampedeGuard) -> Hit<'_> {
    let names = names();
    Box::new(move |key| drop(black_box(guard.fetch((VIEW, &*names[key]), value).now_or_never().expect("a hit"))))
}

fn http_layer(guard: &StampedeGuard) -> Hit<'static> {
    let uris: Vec<_> = names().iter().map(|name| uri(name)).collect();
    let mut layer = guard.layer(service_fn(page));
    Box::new(move |key| drop(black_box(layer.call(request(&uris[key])).now_or_never().expect("a hit"))))
}

fn names() -> Vec<String> {
    (0..2 * KEYS).map(|key| format!("user:{key}")).collect()
}

fn uri(name: &str) -> Uri {
    format!("http://example.org/{name}").parse().expect("a URI")
}

fn request(uri: &Uri) -> Request<Full<Bytes>> {
    Request::get(uri.clone()).body(Full::default()).expect("a request")
}

async fn page(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let page = Full::from(Bytes::from_static(&[b'x'; 1024]));
    Ok(Response::builder().header(CACHE_CONTROL, "max-age=3600").body(page).expect("a response"))
}

async fn value() -> Result<String, Infallible> {
    Ok("x".repeat(100))
}

/// Keys of each thread.
/// The name of the view, which is the first part of each key.
const VIEW: &str = "value";
const KEYS: usize = 64;
/// Rounds with each number of threads.
const ROUNDS: usize = 1_000;
/// Shorter than what a scheduler gives a thread at once.
const ROUND: Duration = Duration::from_millis(1);
/// Hits between two readings of the clock.
const BATCH: usize = 16;
/// Far more than a batch takes: a thread that needs longer has lost its core.
const PAUSE: Duration = Duration::from_micros(100);
const AN_HOUR: Duration = Duration::from_secs(3600);
