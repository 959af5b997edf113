//! A misbehaving network between clients and a server.

use socket2::{SockFilter, SockRef};
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    os::fd::AsFd,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::{self, Instant},
};
use tokio_util::task::AbortOnDropHandle;

/// A relay on its own port that passes bytes on as its [`Mode`] says. Dropping it cuts all connections.
///
/// It loses bytes as TCP does: after a loss, a connection carries nothing more in that direction until it is cut.
/// [`swallow_reply`](Self::swallow_reply) is the exception.
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
    _accept: AbortOnDropHandle<Infallible>,
}

/// What happens to the bytes on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Bytes arrive.
    #[default]
    Pass,
    /// Bytes are delayed by this time, in each direction.
    Delay(Duration),
    /// Bytes arrive in small pieces.
    Trickle,
    /// Requests arrive and are executed, replies are lost; connections stay open.
    NoReplies,
    /// Bytes are lost in both directions; connections stay open, and new ones can be made.
    HalfOpen,
    /// The host is gone: packets to it vanish, so that nothing is acknowledged and no connection is made or closed.
    Gone,
    /// Requests are held until another mode is set.
    HoldRequests,
    /// Requests arrive and are executed; replies and messages are held until another mode is set.
    HoldReplies,
    /// New connections are reset at once; existing connections are not affected.
    Refuse,
    /// New connections are accepted, but not served until another mode is set; existing connections are not affected.
    HoldConnections,
    /// New connections are held and served in reverse order: the last connection is served first.
    LastFirst,
}

#[derive(Default)]
struct State {
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<u64>,
    /// Number of next replies to lose, each together with its connection.
    doomed: AtomicUsize,
    /// Number of next replies to lose while the connection stays.
    swallowed: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

impl Mode {
    fn holds(self, way: Way) -> bool {
        matches!((self, way), (Self::HoldRequests, Way::There) | (Self::HoldReplies, Way::Back))
    }
}

impl Relay {
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("the loopback interface has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let state = Arc::<State>::default();
        let accept = AbortOnDropHandle::new(tokio::spawn(accept(listener, server, state.clone())));
        Self { address, state, _accept: accept }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a client of the server through this relay.
    pub fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}", self.address)).expect("the URL is well-formed")
    }

    /// Sets the mode of existing and later connections.
    pub fn set(&self, mode: Mode) {
        self.state.mode.send_replace(mode);
    }

    /// Resets every connection, on both sides.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Loses the next reply, so that later replies are taken for earlier ones: replies are out of step with requests.
    pub fn swallow_reply(&self) {
        self.state.swallowed.store(1, SeqCst);
    }

    /// Lets the server execute the next `n` requests, and resets their connections instead of replying.
    pub fn lose_replies(&self, n: usize) {
        self.state.doomed.store(n, SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, state: Arc<State>) -> Infallible {
    let (mut held, mut vanishing) = (Vec::new(), pin!(vanish(&listener, &state)));
    loop {
        let near = tokio::select! {
            never = &mut vanishing => match never {},
            Ok((near, _)) = listener.accept() => near,
            () = time::sleep(QUIET), if !held.is_empty() => {
                if *state.mode.borrow() == Mode::HoldConnections {
                    continue;
                }
                held.pop().into_iter().for_each(|near| serve(near, server, state.clone()));
                continue;
            }
        };
        // The relay's own sockets are closed by a reset, without waiting for the peer.
        near.set_zero_linger().expect("it is a TCP socket");
        let mode = *state.mode.borrow();
        match mode {
            Mode::Refuse => drop(near),
            Mode::HoldConnections | Mode::LastFirst => held.push(near),
            _ => serve(near, server, state.clone()),
        }
    }
}

/// Lets all packets to the socket vanish whenever the host is [`Gone`](Mode::Gone): the kernel drops them unseen.
async fn vanish(socket: &impl AsFd, state: &State) -> Infallible {
    let (mut modes, socket) = (state.mode.subscribe(), SockRef::from(socket));
    loop {
        modes.wait_for(|mode| *mode == Mode::Gone).await.expect("the state outlives this");
        socket.attach_filter(&[DROP_PACKET]).expect("the kernel has packet filters");
        modes.wait_for(|mode| *mode != Mode::Gone).await.expect("the state outlives this");
        socket.detach_filter().expect("it has one");
    }
}

/// Passes bytes on until one side closes, or the connection is cut.
fn serve(mut near: TcpStream, server: SocketAddr, state: Arc<State>) {
    let mut cuts = state.cuts.subscribe();
    tokio::spawn(async move {
        let Ok(socket) = near.as_fd().try_clone_to_owned() else { return };
        let passed_on = async {
            let mut far = TcpStream::connect(server).await?;
            far.set_zero_linger()?;
            near.set_nodelay(true)?;
            far.set_nodelay(true)?;
            let (near, far) = (near.split(), far.split());
            tokio::select! {
                end = pass_on(near.0, far.1, Way::There, &state) => end,
                end = pass_on(far.0, near.1, Way::Back, &state) => end,
            }
        };
        // A host that is gone closes nothing.
        let closes = async {
            let _ = passed_on.await;
            let _ = state.mode.subscribe().wait_for(|mode| *mode != Mode::Gone).await;
        };
        tokio::select! {
            () = closes => {}
            never = vanish(&socket, &state) => match never {},
            _ = cuts.changed() => {}
        }
    });
}

/// Passes on one direction of a connection. Delayed bytes do not block the reading of later bytes.
async fn pass_on(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    way: Way,
    state: &State,
) -> io::Result<()> {
    let (sender, mut on_the_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let take = async {
        let (mut buffer, mut torn) = (vec![0; 1 << 16], false);
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            if way == Way::Back && one_less(&state.doomed) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if way == Way::Back && one_less(&state.swallowed) {
                continue;
            }
            let mode = *state.mode.borrow();
            torn |= matches!(mode, Mode::HalfOpen | Mode::Gone) || (mode == Mode::NoReplies && way == Way::Back);
            let late = if let Mode::Delay(late) = mode { late } else { Duration::ZERO };
            if !torn {
                let _ = sender.send((Instant::now() + late, buffer[..read].to_vec()));
            }
        }
    };
    let mut modes = state.mode.subscribe();
    let give = async {
        while let Some((due, bytes)) = on_the_way.recv().await {
            time::sleep_until(due).await;
            if modes.wait_for(|mode| !mode.holds(way)).await.is_err() {
                return Ok(());
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let trickles = *state.mode.borrow() == Mode::Trickle;
                let (now, later) = rest.split_at(if trickles { rest.len().min(DROP) } else { rest.len() });
                to.write_all(now).await?;
                if trickles {
                    time::sleep(PAUSE).await;
                }
                rest = later;
            }
        }
        Ok(())
    };
    tokio::select! {
        end = take => end,
        end = give => end,
    }
}

fn one_less(count: &AtomicUsize) -> bool {
    count.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok()
}

/// Time without a new connection after which [`Mode::LastFirst`] serves the next held connection.
const QUIET: Duration = Duration::from_millis(20);
/// A packet filter that keeps nothing of any packet (`BPF_RET | BPF_K`, 0 bytes).
const DROP_PACKET: SockFilter = SockFilter::new(0x06, 0, 0, 0);
/// Bytes per piece in [`Mode::Trickle`].
const DROP: usize = 16;
/// Pause after each piece in [`Mode::Trickle`].
const PAUSE: Duration = Duration::from_millis(1);
