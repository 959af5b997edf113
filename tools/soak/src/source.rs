//! The origin from the side of a worker.

use crate::{
    Result,
    args::{Duty, Sabotage},
    check::Value,
};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    time::sleep,
};

#[derive(Clone)]
pub(crate) struct Source(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    /// Connections that are not in use.
    idle: Mutex<Vec<BufReader<TcpStream>>>,
    sabotage: Option<Sabotage>,
    first: Mutex<HashMap<String, u64>>,
    calls: AtomicU64,
}

impl Source {
    pub(crate) fn new(duty: &Duty) -> Self {
        let (address, sabotage) = (duty.origin, duty.sabotage);
        Self(Arc::new(Inner {
            address,
            idle: Mutex::default(),
            sabotage,
            first: Mutex::default(),
            calls: AtomicU64::new(0),
        }))
    }

    /// Returns the value of the key. The value is read at once and returned after `takes`, which is the worst case of a
    /// slow origin.
    pub(crate) async fn fetch(&self, key: &str, takes: Duration) -> Result<Value> {
        let version = self.ask("read", key).await?;
        sleep(takes).await;
        Ok(match (self.0.sabotage, self.0.calls.fetch_add(1, Relaxed)) {
            (Some(Sabotage::Stale), _) => {
                Value::new(key, *lock(&self.0.first).entry(key.to_owned()).or_insert(version))
            }
            (Some(Sabotage::Keys), 20..) => Value::new("another", version),
            (Some(Sabotage::Errors), 20..) => return Err("sabotage".into()),
            _ => Value::new(key, version),
        })
    }

    /// Changes the value of the key. Earlier values are no longer valid.
    pub(crate) async fn raise(&self, key: &str) -> Result<u64> {
        self.ask("raise", key).await
    }

    /// Tells all workers that the invalidation of every earlier version was acknowledged.
    pub(crate) async fn settled(&self, key: &str, version: u64) -> Result<()> {
        self.ask("settled", &format!("{version} {key}")).await.map(drop)
    }

    /// Returns a stream of the invalidations that any worker completes from now on.
    pub(crate) async fn hear(&self) -> Result<Lines<BufReader<TcpStream>>> {
        let mut connection = self.connect().await?;
        connection.write_all(b"hear\n").await?;
        Ok(connection.lines())
    }

    /// Sends a request and returns its reply. If it is dropped half-way, its connection is not used again.
    async fn ask(&self, what: &str, of: &str) -> Result<u64> {
        let idle = lock(&self.0.idle).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.write_all(format!("{what} {of}\n").as_bytes()).await?;
        let mut answer = String::new();
        connection.read_line(&mut answer).await?;
        lock(&self.0.idle).push(connection);
        Ok(answer.trim().parse()?)
    }

    async fn connect(&self) -> Result<BufReader<TcpStream>> {
        let connection = TcpStream::connect(self.0.address).await?;
        connection.set_nodelay(true)?;
        Ok(BufReader::new(connection))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
