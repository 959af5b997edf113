//! The command line.

use clap::Parser;
use hyper::{Uri, http::uri::Authority};
use stampede_guard::{Policy, StampedeGuard, http::Rules};
use std::{net::SocketAddr, time::Duration};

/// A shared HTTP cache in front of an origin. Requests for one URL that come at once are one request to the origin.
///
/// It serves HTTP/1.1 without TLS until SIGTERM or Ctrl-C; then it takes no more connections, answers what is under way,
/// an endless stream included, and exits with 0. Upgrades (WebSocket) and CONNECT are not supported: the Upgrade field
/// is dropped.
///
/// The origin gets the client's Host and target. Forwarded, X-Forwarded-* and X-Real-IP of clients are dropped, since
/// answers are shared and those fields are not in their key; X-Forwarded-Host and X-Forwarded-Proto say what is in the
/// key. The origin is not told who asked: the answer is for others too.
#[derive(Parser)]
#[command(name = "reverse_proxy")]
pub(crate) struct Args {
    /// Where to serve
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// Whom to ask: http://HOST[:PORT]
    #[arg(long, value_name = "URL", value_parser = origin)]
    pub(crate) origin: Authority,

    /// Share the cache with other processes through this Redis; without, it is in memory
    #[arg(long, value_name = "URL", value_parser = redis)]
    redis: Option<redis::Client>,

    /// How long Redis may take before requests go on without it
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = time)]
    redis_timeout: Duration,

    /// Keeps caches of different sites in one Redis apart
    #[arg(long, value_name = "NAME", default_value = "proxy")]
    namespace: String,

    /// For how long others wait in vain when a process dies that asks the origin
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    lease: Duration,

    /// For how long a request waits for the answer to another one, before it asks for itself
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    wait: Duration,

    /// Larger bodies are passed on and not stored
    #[arg(long, value_name = "BYTES", default_value = "1048576")]
    max_body: usize,

    /// Store also what does not say for how long it is fresh, for this long
    #[arg(long, value_name = "TIME", value_parser = time)]
    fresh_for: Option<Duration>,

    /// Cache-Control and Pragma of requests count for nothing
    #[arg(long)]
    ignore_request_directives: bool,

    /// How long the origin may take to begin its answer, once it has all of the request
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) origin_timeout: Duration,
}

impl Args {
    /// The guard as the arguments want it. It connects with the first request.
    pub(crate) fn guard(&self) -> StampedeGuard {
        let (mut rules, mut policy) = (Rules::default(), Policy::default());
        match self.fresh_for {
            Some(lifetime) => policy = Policy::fresh_for(lifetime),
            None => rules = rules.respect_origin_only(),
        }
        if self.ignore_request_directives {
            rules = rules.ignore_request_directives();
        }
        let guard = self.redis.clone().map_or_else(StampedeGuard::in_memory, StampedeGuard::new);
        // The origin has its own time limit; the guard's only has to be longer.
        guard
            .namespace(&self.namespace)
            .http(rules)
            .policy(policy)
            .op_timeout(self.redis_timeout)
            .lease(self.lease)
            .wait(self.wait)
            .max_payload(self.max_body)
            .max_fetch(self.origin_timeout + Duration::from_secs(60))
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

/// `500ms`, `2s` or `3m`.
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
