//! Nodes of a cluster.

use super::RedisServer;
use crate::eventually;
use redis::FromRedisValue;
use std::{iter, ops::RangeInclusive};

impl RedisServer {
    /// Starts a node of a cluster, without slots and without other nodes.
    pub fn cluster_node(args: &[&str]) -> Self {
        Self::with(&[&[CLUSTER_ENABLED, "yes"], args].concat())
    }

    /// Starts a cluster of `N` masters with equal shares of the slots, and with these arguments.
    pub async fn cluster<const N: usize>(args: &[&str]) -> [Self; N] {
        let nodes = std::array::from_fn(|_| Self::cluster_node(args));
        let first = |i: usize| u16::try_from(i * 16_384 / N).expect("the number of a slot");
        for (i, node) in nodes.iter().enumerate() {
            node.add_slots(first(i)..=first(i + 1) - 1).await;
            node.meet(&nodes[..i]).await;
        }
        for node in &nodes {
            eventually("every node knows the slots of all nodes", async || {
                let info: String = node.cluster_command(&["INFO"]).await;
                info.contains("cluster_slots_ok:16384") && info.contains("cluster_state:ok")
            })
            .await;
        }
        nodes
    }

    /// Returns the port of this node on the bus of the cluster. Redis 6.2 has no setting for it.
    pub fn bus_port(&self) -> u16 {
        self.port() + BUS_OFFSET
    }

    /// Returns the port on which this server serves TLS, if it is started with `--tls-cluster` or `--tls-replication`, or as a
    /// sentinel with the line `tls-replication yes`. It serves [`port`](Self::port) as well.
    pub fn tls_port(&self) -> u16 {
        self.port() + TLS_OFFSET
    }

    /// Gives slots to this node of a cluster. Redis 6.2 has no `CLUSTER ADDSLOTSRANGE`.
    pub async fn add_slots(&self, slots: RangeInclusive<u16>) {
        let slots = slots.map(|slot| slot.to_string()).collect::<Vec<_>>();
        let args = iter::once("ADDSLOTS").chain(slots.iter().map(String::as_str)).collect::<Vec<_>>();
        let () = self.cluster_command(&args).await;
    }

    /// Introduces this node and each of the other nodes of a cluster to one another. A node that stalls for longer than the
    /// node timeout meanwhile may stay unknown to one of the others for ever, so the introduction is repeated.
    pub async fn meet(&self, others: impl IntoIterator<Item = &Self>) {
        for other in others {
            eventually("both nodes know each other", async || {
                let is_known = self.knows(other).await && other.knows(self).await;
                if !is_known {
                    let (port, bus_port) = (other.port().to_string(), other.bus_port().to_string());
                    let () = self.cluster_command(&["MEET", "127.0.0.1", &port, &bus_port]).await;
                }
                is_known
            })
            .await;
        }
    }

    /// Reports whether this node of a cluster has heard from the other one.
    async fn knows(&self, other: &Self) -> bool {
        let id: String = other.cluster_command(&["MYID"]).await;
        self.cluster_command::<String>(&["NODES"]).await.contains(&format!("{id} 127.0.0.1"))
    }

    async fn cluster_command<T: FromRedisValue>(&self, args: &[&str]) -> T {
        redis::cmd("CLUSTER").arg(args).query_async(&mut self.connection().await).await.expect("the node is up")
    }
}

/// Returns how far from the port of a server the ports are that it needs besides, by its arguments.
pub(super) fn offsets(args: &[&str]) -> &'static [u16] {
    let needs = [CLUSTER_ENABLED, TLS_REPLICATION, TLS_OF_SENTINEL].iter().any(|arg| args.contains(arg));
    if needs { &[BUS_OFFSET, TLS_OFFSET] } else { &[] }
}

/// Returns the lines of a sentinel that the other sentinels reach by TLS.
pub(super) fn tls_of_sentinel(port: u16, config: &[String]) -> String {
    let is_tls = config.iter().any(|line| line == TLS_OF_SENTINEL);
    if is_tls { format!("tls-port {}\n", port + TLS_OFFSET) } else { String::new() }
}

/// Returns the arguments of a server that others reach by TLS: a port on which it serves TLS, and the port of the bus of a
/// cluster, which would depend on the former otherwise.
pub(super) fn tls_ports(port: u16, args: &[String]) -> Vec<String> {
    let has = |arg| args.iter().any(|other| other == arg);
    let is_bus = has(CLUSTER_ENABLED) && has(TLS_BUS);
    let tls = is_bus || has(TLS_REPLICATION);
    let ports = [("--tls-port", TLS_OFFSET, tls), ("--cluster-port", BUS_OFFSET, is_bus)];
    let served = ports.into_iter().filter(|(.., is_served)| *is_served);
    // Not for each port: a server without a bus may have one of the last.
    served.flat_map(|(arg, offset, _)| [arg.to_owned(), (port + offset).to_string()]).collect()
}

const CLUSTER_ENABLED: &str = "--cluster-enabled";
const TLS_BUS: &str = "--tls-cluster";
const TLS_OF_SENTINEL: &str = "tls-replication yes";
const TLS_REPLICATION: &str = "--tls-replication";
const BUS_OFFSET: u16 = 10_000;
const TLS_OFFSET: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail: one server of five had no start, where the system gives ports up to 60,999.
    #[test]
    fn server_without_a_bus_may_have_the_last_port() {
        assert!(tls_ports(u16::MAX, &[]).is_empty());
    }
}
