//! A network that misbehaves, between clients and a server.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
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

/// Listens on a port of its own and passes on what comes, as its [`Mode`] says. Dropping it cuts all connections.
///
/// It loses bytes as TCP does: a connection on which some were lost carries nothing any more in that direction, until
/// it is cut. [`swallow_reply`](Self::swallow_reply) is the exception.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<State>,
    _accept: AbortOnDropHandle<Infallible>,
}

/// What becomes of the bytes that pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They arrive.
    #[default]
    Pass,
    /// They take so long, each way.
    Delay(Duration),
    /// They arrive few at a time.
    Trickle,
    /// Requests arrive and are executed, replies are lost; connections stay open.
    NoReplies,
    /// They are lost both ways; connections stay open, and new ones can be made.
    HalfOpen,
    /// Requests wait on their way, until another mode is set.
    HoldRequests,
    /// Requests arrive and are executed; replies, and messages, wait on their way until another mode is set.
    HoldReplies,
    /// New connections are reset at once; those that exist are not touched.
    Refuse,
    /// New connections wait for those made after them: the last one is served first.
    LastFirst,
}

#[derive(Default)]
struct State {
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<u64>,
    /// So many replies to come are lost, each together with its connection.
    doomed: AtomicUsize,
    /// So many replies to come are lost, and nothing else.
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
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("the loopback interface has a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let state = Arc::<State>::default();
        let accept = AbortOnDropHandle::new(tokio::spawn(accept(listener, server, state.clone())));
        Self { address, state, _accept: accept }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Of what is behind it.
    pub(crate) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}", self.address)).expect("the URL is well-formed")
    }

    /// For connections that exist as for those to come.
    pub(crate) fn set(&self, mode: Mode) {
        self.state.mode.send_replace(mode);
    }

    /// Resets every connection, on both sides.
    pub(crate) fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The next reply is lost, and those after it are taken for it: what a client or a proxy does that has lost count.
    pub(crate) fn swallow_reply(&self) {
        self.state.swallowed.store(1, SeqCst);
    }

    /// The next `n` requests are executed, and their connections reset instead of replying.
    pub(crate) fn lose_replies(&self, n: usize) {
        self.state.doomed.store(n, SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, state: Arc<State>) -> Infallible {
    let mut held = Vec::new();
    loop {
        let near = tokio::select! {
            Ok((near, _)) = listener.accept() => near,
            () = time::sleep(QUIET), if !held.is_empty() => {
                held.pop().into_iter().for_each(|near| serve(near, server, state.clone()));
                continue;
            }
        };
        // Ours are closed by a reset, and without waiting for anybody.
        near.set_zero_linger().expect("it is a TCP socket");
        let mode = *state.mode.borrow();
        match mode {
            Mode::Refuse => drop(near),
            Mode::LastFirst => held.push(near),
            _ => serve(near, server, state.clone()),
        }
    }
}

/// Until one side closes, or the connection is cut.
fn serve(near: TcpStream, server: SocketAddr, state: Arc<State>) {
    let mut cuts = state.cuts.subscribe();
    tokio::spawn(async move {
        let passed_on = async {
            let far = TcpStream::connect(server).await?;
            far.set_zero_linger()?;
            near.set_nodelay(true)?;
            far.set_nodelay(true)?;
            let (near, far) = (near.into_split(), far.into_split());
            tokio::select! {
                end = pass_on(near.0, far.1, Way::There, &state) => end,
                end = pass_on(far.0, near.1, Way::Back, &state) => end,
            }
        };
        tokio::select! {
            _ = passed_on => {}
            _ = cuts.changed() => {}
        }
    });
}

/// One direction of a connection. What is on its way does not hold up what comes next.
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
            torn |= mode == Mode::HalfOpen || (mode == Mode::NoReplies && way == Way::Back);
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

/// Connections that are made within this time of each other are served in another order, so far apart.
const QUIET: Duration = Duration::from_millis(20);
/// Bytes at a time,
const DROP: usize = 16;
/// and the time between two times.
const PAUSE: Duration = Duration::from_millis(1);
