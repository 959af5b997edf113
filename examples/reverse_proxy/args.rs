//! The command line.

use clap::Parser;
use hyper::{Uri, header::HeaderName, http::uri::Authority};
use stampede_guard::{Policy, StampedeGuard, http::HttpOptions};
use std::{net::SocketAddr, time::Duration};

/// A shared HTTP cache in front of an origin. Concurrent requests for one URL become one request to the origin.
///
/// It serves HTTP/1.1 without TLS until SIGTERM or Ctrl-C. Then it accepts no more connections, finishes the open
/// responses (also an endless stream), and exits with 0. Upgrades (WebSocket) and CONNECT are not supported: the
/// Upgrade field is dropped.
///
/// The origin receives the client's Host and target. Forwarded, X-Forwarded-* and X-Real-IP of clients are dropped,
/// because responses are shared and these fields are not in the cache key. X-Forwarded-Host and X-Forwarded-Proto are
/// set from the cache key, unless --trust-forwarded keeps those of a proxy in front. The origin does not learn the client's address, because the response is also served to other
/// clients.
#[derive(Parser)]
#[command(name = "reverse_proxy")]
pub(crate) struct Args {
    /// Address to serve on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// The origin: http://HOST[:PORT]
    #[arg(long, value_name = "URL", value_parser = origin)]
    pub(crate) origin: Authority,

    /// Share the cache with other processes through this Redis [default: in memory]
    #[arg(long, value_name = "URL", value_parser = redis)]
    redis: Option<redis::Client>,

    /// How long Redis may take before a request continues without it
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = time)]
    redis_timeout: Duration,

    /// Separates the caches of different sites in one Redis
    #[arg(long, value_name = "NAME", default_value = "proxy")]
    namespace: String,

    /// Lease TTL: if a process dies while it asks the origin, waiters wait this long
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    lease: Duration,

    /// How long a request waits for the response to another request before it gets a 503 [default: as long as the
    /// origin may take]
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,

    /// Bodies larger than this are forwarded but not stored
    #[arg(long, value_name = "BYTES", default_value = "1048576")]
    max_body: usize,

    /// Also store responses without a freshness lifetime, for this long. Replaces --heuristic
    #[arg(long, value_name = "TIME", value_parser = time)]
    fresh_for: Option<Duration>,

    /// Store responses without a freshness lifetime for this part of the time since their Last-Modified, at most a day
    #[arg(long, value_name = "PART", default_value = "0.1", value_parser = part)]
    heuristic: f64,

    /// Serve stale responses this long in place of errors of the origin, unless they forbid it; 0 is off
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    stale_if_error: u32,

    /// Follow Cache-Control and Pragma of requests to the letter, so that each reload reaches the origin [default: at most
    /// one a second for each page]
    #[arg(long)]
    honour_request_directives: bool,

    /// Share responses that state a lifetime among all clients, as RFC 9111 has it, also without a `public`
    #[arg(long)]
    explicit_is_shared: bool,

    /// Request fields that the origin does not choose its responses by: clients share a response although they differ
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    harmless_fields: Vec<HeaderName>,

    /// Trust X-Forwarded-Host and X-Forwarded-Proto, for a proxy in front that sets them itself: they become the host and
    /// scheme of the cache key, and the origin receives them
    #[arg(long)]
    pub(crate) trust_forwarded: bool,

    /// How long the origin may take to start its response, after it has received the whole request
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) origin_timeout: Duration,
}

impl Args {
    /// Returns the guard with the settings of the arguments. It connects with the first request.
    pub(crate) fn guard(&self) -> StampedeGuard {
        let mut options = HttpOptions::default()
            .explicit_is_shared(self.explicit_is_shared)
            .harmless_fields(self.harmless_fields.iter().cloned());
        let mut policy = Policy::default();
        match self.fresh_for {
            Some(lifetime) => policy = Policy::fresh_for(lifetime),
            None => options = options.heuristic_freshness(self.heuristic),
        }
        policy = policy.stale_if_error(Duration::from_secs(self.stale_if_error.into()));
        if self.honour_request_directives {
            options = options.honour_request_directives();
        }
        if self.trust_forwarded {
            options = options.trust_forwarded([HeaderName::from_static("x-forwarded-host")]);
        }
        let guard = self.redis.clone().map_or_else(StampedeGuard::in_memory, StampedeGuard::new);
        // The origin has its own time limit; the fetch timeout of the guard only has to be longer.
        let guard = guard
            .namespace(&self.namespace)
            .http(options)
            .policy(policy)
            .store_timeout(self.redis_timeout)
            .lease_ttl(self.lease)
            .max_payload(self.max_body)
            .fetch_timeout(self.origin_timeout + Duration::from_secs(60));
        match self.wait {
            Some(span) => guard.wait_timeout(span),
            None => guard,
        }
    }
}

fn origin(url: &str) -> Result<Authority, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
    let plain = uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none();
    let authority = uri.authority().filter(|authority| plain && !authority.as_str().contains('@'));
    authority.cloned().ok_or_else(|| "an origin is http://HOST[:PORT], and no more".to_owned())
}

fn redis(url: &str) -> redis::RedisResult<redis::Client> {
    redis::Client::open(url)
}

/// Parses a part from 0 to 1.
fn part(text: &str) -> Result<f64, String> {
    let part = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.0..=1.0).contains(&part) { Ok(part) } else { Err("a part is from 0 to 1".to_owned()) }
}

/// Parses `500ms`, `2s` or `3m`.
fn time(text: &str) -> Result<Duration, String> {
    let end_of_number = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end_of_number);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err("a time is a number with ms, s or m".to_owned()),
    };
    let number = number.parse::<u32>().map_err(|error| error.to_string())?;
    Ok(Duration::from_millis(u64::from(number) * milliseconds))
}
