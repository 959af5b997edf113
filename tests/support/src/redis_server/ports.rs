//! Ports of the loopback interface that the system gives to no other socket.

use socket2::{Domain, Socket, Type};
use std::{
    io, iter,
    net::{Ipv4Addr, SocketAddr},
};

/// A port on which nothing listens: no system gives it to a socket that does not ask for it.
pub const CLOSED_PORT: u16 = 1;

/// A port that a server has whether it runs or not, and its neighbours.
///
/// Each is bound, so the system gives it neither to a listener nor to a connection, of whatever process. Nothing listens,
/// so a connection is refused until a server binds the port by its number, which `SO_REUSEADDR` allows.
#[derive(Debug)]
pub(super) struct Ports {
    first: u16,
    _bound: Vec<Socket>,
}

impl Ports {
    /// Reserves some port, and the ports at these offsets from it.
    pub(super) fn reserve(offsets: &[u16]) -> Self {
        let tried = iter::repeat_with(|| Self::try_reserve(offsets)).take(PORTS_TRIED);
        tried.flatten().next().expect("the loopback interface has free ports")
    }

    pub(super) fn first(&self) -> u16 {
        self.first
    }

    fn try_reserve(offsets: &[u16]) -> io::Result<Self> {
        let mut bound = vec![bind(0)?];
        let first = bound[0].local_addr()?.as_socket().expect("an address of IP").port();
        for offset in offsets {
            let port = first.checked_add(*offset).ok_or(io::ErrorKind::AddrNotAvailable)?;
            bound.push(bind(port)?);
        }
        Ok(Self { first, _bound: bound })
    }
}

/// Binds a port that no other socket has, or some port if it is 0.
fn bind(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    // Not before: two sockets that allow it can have one port.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

const PORTS_TRIED: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Seen to fail: without the sockets, nothing keeps others from the ports.
    #[test]
    fn reserved_port_is_refused_until_bound_by_its_number() {
        let ports = Ports::reserve(&[2]);
        for port in [ports.first(), ports.first() + 2] {
            let address = (Ipv4Addr::LOCALHOST, port);
            assert_eq!(
                TcpStream::connect(address).map_err(|error| error.kind()).err(),
                Some(io::ErrorKind::ConnectionRefused)
            );
            assert_eq!(bind(port).map_err(|error| error.kind()).err(), Some(io::ErrorKind::AddrInUse));
            // Sets `SO_REUSEADDR`, as a server does.
            TcpListener::bind(address).expect("the port is bound by its number");
        }
    }
}
