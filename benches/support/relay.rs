//! A server far away: what passes is held up, so that time counts round trips.

use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// Listens on a port of its own for as long as the runtime lives; each byte takes `one_way` to the server at `to`, and
/// as long back.
pub(crate) async fn relay(to: SocketAddr, one_way: Duration) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("the loopback interface has a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(to).await.expect("the server is up");
            for stream in [&near, &far] {
                stream.set_nodelay(true).expect("it is a TCP socket");
            }
            let (near, far) = (near.into_split(), far.into_split());
            pass_on(near.0, far.1, one_way);
            pass_on(far.0, near.1, one_way);
        }
    });
    address
}

/// Late, but without holding up what comes next.
fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Duration) {
    let (sender, mut on_the_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let _ = sender.send((Instant::now() + one_way, buffer[..read].to_vec()));
        }
    });
    tokio::spawn(async move {
        while let Some((due, bytes)) = on_the_way.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
}
