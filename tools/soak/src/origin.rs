//! The origin: a number for each key, which survives Redis and every worker.
//!
//! The protocol has one line per request and reply. `read KEY` and `raise KEY` return the number; `settled KEY NUMBER`
//! returns 0. After `hear`, the connection receives every `settled` of any client.

use crate::Result;
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::broadcast,
    task::JoinSet,
};

#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    versions: Mutex<HashMap<String, u64>>,
    reads: AtomicU64,
    settled: broadcast::Sender<String>,
}

impl Origin {
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let state =
            State { versions: Mutex::default(), reads: AtomicU64::new(0), settled: broadcast::Sender::new(HEARD) };
        let origin = Self { address: listener.local_addr()?, state: Arc::new(state) };
        tokio::spawn(origin.clone().serve(listener));
        Ok(origin)
    }

    /// Returns how many times it was read.
    pub(crate) fn reads(&self) -> u64 {
        self.state.reads.load(Relaxed)
    }

    async fn serve(self, listener: TcpListener) {
        let mut clients = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let state = self.state.clone();
            clients.spawn(async move { state.answer(client).await });
            while clients.try_join_next().is_some() {}
        }
    }
}

impl State {
    /// Serves a client until it disconnects.
    async fn answer(&self, mut client: TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let (reader, mut writer) = client.split();
        let mut lines = BufReader::new(reader).lines();
        while let Some(line) = lines.next_line().await? {
            let answer = match line.split_once(' ') {
                Some(("read", key)) => {
                    self.reads.fetch_add(1, Relaxed);
                    self.version(key, 0)
                }
                Some(("raise", key)) => self.version(key, 1),
                Some(("settled", what)) => {
                    let _ = self.settled.send(what.to_owned()); // there may be no listener yet
                    0
                }
                _ => {
                    let mut settled = self.settled.subscribe();
                    while let Ok(what) = settled.recv().await {
                        writer.write_all(format!("{what}\n").as_bytes()).await?;
                    }
                    return Ok(());
                }
            };
            writer.write_all(format!("{answer}\n").as_bytes()).await?;
        }
        Ok(())
    }

    fn version(&self, key: &str, more: u64) -> u64 {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let version = versions.entry(key.to_owned()).or_insert(1);
        *version += more;
        *version
    }
}

/// Maximum number of messages that may be unread while a worker is stopped.
const HEARD: usize = 1 << 16;
