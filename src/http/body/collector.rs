//! Collects a body for its readers and for the store.

use super::{
    CacheBody, HandedOff,
    shared::{BodyEnd, SharedBody},
};
use crate::{engine::frontend::Completed, error::BoxError, store::entry::Payload};
use bytes::{Buf, BytesMut};
use http_body::Body;
use std::{future::poll_fn, pin::Pin, sync::Arc, thread};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

/// A collector of a body for its readers and for the store. It drives the body even if no reader is left, so that a
/// client that disconnects strands neither the other readers nor the store.
pub(in crate::http) struct BodyCollector<B> {
    source: Option<Remainder<B>>,
    shared: Arc<SharedBody>,
    payload: BytesMut,
    /// Expected length of the payload in bytes, if the head states it.
    expected_length: Option<u64>,
    cap: usize,
}

/// A body that has not ended, and the sender that hands off its rest when collecting stops.
struct Remainder<B> {
    body: Pin<Box<B>>,
    rest: oneshot::Sender<HandedOff<B>>,
}

impl<B: Body<Error: Into<BoxError>>> BodyCollector<B> {
    /// Creates the collector, the shared body, and the body for the leader's client.
    ///
    /// Called before the future that runs the collector exists, since that future may be dropped before its first poll.
    /// `head` precedes the body in the payload and counts towards the cap. A body that ends before or after `length` is
    /// truncated.
    pub(in crate::http) fn new(
        body: B,
        head: &[u8],
        length: Option<u64>,
        cap: usize,
    ) -> (Self, Arc<SharedBody>, CacheBody<B>) {
        let shared = SharedBody::new(body.size_hint().exact());
        let (rest, handed_off) = oneshot::channel();
        let client_body = CacheBody::leader(&shared, handed_off);
        let source = Some(Remainder { body: Box::pin(body), rest });
        let expected_length = length.map(|length| length.saturating_add(head.len() as u64));
        let collector = Self { source, shared: shared.clone(), payload: BytesMut::from(head), expected_length, cap };
        (collector, shared, client_body)
    }

    /// Collects until the body ends or exceeds the cap, at most until `limit`. After that nothing is stored, and the
    /// result is `at_limit`. Collecting goes on as long as a joined reader is left; then the rest is handed off.
    pub(in crate::http) async fn run(mut self, limit: Instant, at_limit: Completed) -> Completed {
        if let Ok(ended) = timeout_at(limit, self.collect()).await {
            return ended;
        }
        Box::pin(self.serve_joined_readers()).await; // boxed, because every body would reserve room for it
        self.hand_off();
        at_limit
    }

    async fn serve_joined_readers(&mut self) {
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = shared.close_when_deserted() => {}
            _ = self.collect() => {}
        }
    }

    /// Collects until the body ends or exceeds the cap. Cancel safe: collecting can be resumed.
    async fn collect(&mut self) -> Completed {
        while let Some(source) = &mut self.source {
            let Some(frame) = poll_fn(|cx| source.body.as_mut().poll_frame(cx)).await else { break };
            let Ok(frame) = frame else { return self.truncate() };
            let mut data = match frame.into_data() {
                Ok(data) => data,
                Err(other) => {
                    if let Ok(trailers) = other.into_trailers() {
                        self.shared.set_trailers(trailers);
                    }
                    continue;
                }
            };
            let chunk = data.copy_to_bytes(data.remaining());
            let over = self.payload.len() + chunk.len() > self.cap;
            if !over {
                self.payload.extend_from_slice(&chunk);
            }
            self.shared.push(chunk);
            if over {
                self.hand_off();
                return Completed::TooLarge;
            }
        }
        if self.expected_length.is_some_and(|expected_length| expected_length != self.payload.len() as u64) {
            return self.truncate();
        }
        self.end(BodyEnd::Complete);
        Completed::Payload(Payload::from(std::mem::take(&mut self.payload).freeze()))
    }
}

impl<B> BodyCollector<B> {
    fn end(&mut self, end: BodyEnd) {
        self.source = None;
        self.shared.end(end);
    }

    fn truncate(&mut self) -> Completed {
        self.end(BodyEnd::Truncated);
        Completed::Truncated
    }

    /// Hands off the rest of a body that has not ended.
    fn hand_off(&mut self) {
        if let Some(Remainder { body, rest }) = self.source.take() {
            let _ = rest.send(body); // without a client the body is dropped, which the origin notices
            self.shared.end(BodyEnd::HandedOff);
        }
    }
}

/// Runs also when collecting is aborted, for example because it takes ten times the fetch timeout: that does not end
/// the response of the leader's client.
impl<B> Drop for BodyCollector<B> {
    fn drop(&mut self) {
        match self.source {
            Some(_) if thread::panicking() => _ = self.truncate(), // a body that panicked is not polled again
            _ => self.hand_off(),
        }
    }
}
