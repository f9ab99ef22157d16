//! What the RoCE link stands on and beside: UDP between two processes without any library (`c/udp.c`), TCP by iperf3 and
//! libfabric's tcp provider by fi_pingpong, all over the loopback interface.

use std::process::Command;

use anyhow::{Context, Result};
use vervain_tests::free_port;

use crate::between::raw;
use crate::process::Pair;
use crate::setup::{Setup, installed};

/// Bytes of a RoCE packet of 4,096 bytes of payload: BTH, payload, ICRC.
const FULL_PACKET: &str = "4112";

/// Half a round trip of 8 bytes in nanoseconds; both sides ask until a datagram is there.
pub fn polling(setup: &Setup) -> Result<f64> {
    raw(setup, "udp", &["poll", "8", "20000"])
}

/// Half a round trip of 8 bytes in nanoseconds; both sides sleep until a datagram is there.
pub fn sleeping(setup: &Setup) -> Result<f64> {
    raw(setup, "udp", &["block", "8", "5000"])
}

/// MiB/s of full packets in trains.
pub fn stream(setup: &Setup) -> Result<f64> {
    raw(setup, "udp", &["stream", FULL_PACKET, "60000"])
}

/// MiB/s of a TCP stream.
pub fn tcp_stream(setup: &Setup) -> Result<f64> {
    installed("iperf3", "iperf3")?;
    let port = free_port();
    let [mut server, mut client] = [(); 2].map(|()| Command::new("iperf3"));
    server.args(["-s", "-1", "-p", &port.to_string()]);
    client.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "2", "-O", "1", "-J"]);
    received_by_iperf3(&Pair::start(setup.cpus, port, &mut server, &mut client)?.finish()?)
}

fn received_by_iperf3(told: &str) -> Result<f64> {
    let report: serde_json::Value = serde_json::from_str(told).context("iperf3's report")?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 told no rate")?;
    Ok(bits / 8.0 / f64::from(1 << 20))
}

/// A number of fi_pingpong's line: MB/s (of 10^6 bytes) or µs for half a round trip.
#[derive(Debug, Clone, Copy)]
pub enum Column {
    /// Of messages there and back.
    Rate = 5,
    /// Half a round trip.
    Transfer = 6,
}

/// Half a round trip of 8 bytes over libfabric's tcp provider, in nanoseconds, mean.
pub fn libfabric_latency(setup: &Setup) -> Result<f64> {
    Ok(over_tcp(setup, 8, 20_000, Column::Transfer)? * 1e3)
}

/// MiB/s of messages of 1 MiB there and back over libfabric's tcp provider.
pub fn libfabric_rate(setup: &Setup) -> Result<f64> {
    Ok(over_tcp(setup, 1 << 20, 1_000, Column::Rate)? * 1e6 / f64::from(1 << 20))
}

fn over_tcp(setup: &Setup, bytes: usize, count: usize, column: Column) -> Result<f64> {
    let options = ["-p", "tcp", "-e", "msg", "-d", "lo", "-S", &bytes.to_string(), "-I", &count.to_string()];
    let side = || Command::new("fi_pingpong");
    pingpong(setup, side, &options, "127.0.0.1", column)
}

/// A number of fi_pingpong with these options, as `side` runs it.
pub fn pingpong(
    setup: &Setup,
    side: impl Fn() -> Command,
    options: &[&str],
    address: &str,
    column: Column,
) -> Result<f64> {
    installed("fi_pingpong", "libfabric-bin")?;
    let port = free_port();
    let [mut server, mut client] = ["-B", "-P"].map(|option| {
        let mut command = side();
        command.args(options).args([option, &port.to_string()]);
        command
    });
    let told = Pair::start(setup.cpus, port, &mut server, client.arg(address))?.finish()?;
    of_pingpong(&told, column).with_context(|| format!("fi_pingpong told {told:?}"))
}

fn of_pingpong(told: &str, column: Column) -> Option<f64> {
    told.lines().last()?.split_whitespace().nth(column as usize)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_the_reports_of_others() {
        let iperf3 = r#"{"end": {"sum_received": {"bits_per_second": 8388608000.0}}}"#;
        assert_eq!(received_by_iperf3(iperf3).unwrap(), 1000.0);
        let pingpong = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                        8       20k     =20k     312k        0.19s      1.71      4.68       0.21\n";
        assert_eq!(of_pingpong(pingpong, Column::Rate), Some(1.71));
        assert_eq!(of_pingpong(pingpong, Column::Transfer), Some(4.68));
        assert_eq!(of_pingpong("", Column::Rate), None);
    }
}
