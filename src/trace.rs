//! The trace a piece of work belongs to: W3C's `traceparent`, as a request brought it, carried through tasks down to the providers.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static CURRENT: Option<Traceparent>;
}

/// Bytes of a `traceparent` of version 00: version, trace id, parent id and flags, in hex with dashes between.
const LENGTH: usize = 55;

/// A well-formed `traceparent` (<https://www.w3.org/TR/trace-context/>), passed on as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traceparent(Arc<str>);

impl Traceparent {
    /// Reads a header. What is malformed, or names no trace, is as if it had not been sent; of a later version what 00 has is kept.
    pub fn parse(sent: &str) -> Option<Self> {
        let hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let head = sent.get(..LENGTH)?;
        let parts: Vec<&str> = head.split('-').collect();
        let [version, trace, parent, flags] = parts[..] else { return None };
        let lengths = (version.len(), trace.len(), parent.len(), flags.len()) == (2, 32, 16, 2);
        let zero = |part: &str| part.bytes().all(|byte| byte == b'0');
        let ends = sent.len() == LENGTH || (version != "00" && sent.as_bytes()[LENGTH] == b'-');
        let whole = lengths && parts.iter().all(|part| hex(part)) && version != "ff" && !zero(trace) && !zero(parent) && ends;
        whole.then(|| Self(format!("00-{trace}-{parent}-{flags}").into()))
    }

    /// As it is sent on.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The trace's id, for logs.
    pub fn trace_id(&self) -> &str {
        &self.0[3..35]
    }
}

/// The trace that the running task works for, if its request named one.
pub fn current() -> Option<Traceparent> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// Runs work for a trace.
pub fn within<W: Future>(trace: Option<Traceparent>, work: W) -> impl Future<Output = W::Output> {
    CURRENT.scope(trace, work)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_what_names_a_trace_is_passed_on() {
        assert_eq!(Traceparent::parse(GOOD).unwrap().as_str(), GOOD);
        assert_eq!(Traceparent::parse(GOOD).unwrap().trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let later = GOOD.replacen("00", "cc", 1) + "-what-comes";
        assert_eq!(Traceparent::parse(&later).unwrap().as_str(), GOOD);
        for wrong in [
            "",
            &GOOD[1..],
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &format!("{GOOD}0"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &GOOD.replace('-', "."),
            &"é".repeat(40),
        ] {
            assert_eq!(Traceparent::parse(wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn work_knows_its_trace() {
        let trace = Traceparent::parse(GOOD);
        assert_eq!(within(trace.clone(), async { current() }).await, trace);
        assert_eq!(current(), None);
    }
}
