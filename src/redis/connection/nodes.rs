//! The nodes of a cluster, as the user names them.

use crate::clock;
use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The nodes to subscribe at, with user, password and TLS.
pub(crate) struct Nodes {
    /// At least one.
    infos: Box<[ConnectionInfo]>,
    turn: AtomicUsize,
}

impl Nodes {
    /// Creates the list. Its first turn is random, so that the processes of a fleet spread over the nodes. Returns
    /// `None` for an empty list.
    pub(super) fn new(infos: &[ConnectionInfo]) -> Option<Self> {
        let first = infos.first()?.clone();
        let first_turn = (clock::random_unit() * infos.len() as f64) as usize; // `next` takes the remainder
        let like_the_first = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => moved(&first, host, *port),
            _ => info.clone(),
        };
        Some(Self { infos: infos.iter().map(like_the_first).collect(), turn: AtomicUsize::new(first_turn) })
    }

    /// Returns a client of the next node in turn.
    pub(super) fn next(&self) -> RedisResult<Client> {
        let turn = self.turn.fetch_add(1, Relaxed) % self.infos.len();
        Client::open(super::connect::tuned_info(self.infos[turn].clone()))
    }

    /// Returns the first node with TLS and without, if its own address is without. A cluster client of both is an error,
    /// unless its settings ask for TLS.
    pub(super) fn differ_in_tls(&self) -> Option<[ConnectionInfo; 2]> {
        let first = self.infos[0].clone();
        let ConnectionAddr::Tcp(host, port) = first.addr().clone() else { return None };
        let secure = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
        Some([first.clone(), first.set_addr(secure)])
    }
}

/// Returns the same settings for another address.
fn moved(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}
