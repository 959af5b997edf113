//! The nodes of a cluster, as the user names them.

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The nodes to begin with, with user, password and TLS. The cluster names further nodes later.
pub(crate) struct Nodes {
    /// At least one.
    infos: Box<[ConnectionInfo]>,
    turn: AtomicUsize,
}

impl Nodes {
    /// Creates the list. Its first turn is random, so that the processes of a fleet spread over the nodes. Returns
    /// `None` for an empty list.
    pub(super) fn new(infos: Vec<ConnectionInfo>) -> Option<Self> {
        let turn = AtomicUsize::new(fastrand::usize(..infos.len().max(1)));
        (!infos.is_empty()).then(|| Self { infos: infos.into(), turn })
    }

    /// Returns a client of the next node in turn.
    pub(super) fn next(&self) -> RedisResult<Client> {
        let turn = self.turn.fetch_add(1, Relaxed) % self.infos.len();
        Client::open(super::connect::tuned_info(self.infos[turn].clone()))
    }

    /// Returns a client of the node with this address, with the user, password and TLS of the first node.
    pub(super) fn at(&self, host: &str, port: u16) -> RedisResult<Client> {
        let info = self.infos[0].clone();
        let host = host.to_owned();
        let addr = match info.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(info.set_addr(addr))
    }
}
