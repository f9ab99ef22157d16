//! The machines and what they do without the device: what a reader needs to judge the numbers.

use maud::{Markup, html};
use vervain_bench::case::bytes;
use vervain_bench::number::number;
use vervain_bench::results::{Host, RawFigures, Results};

use super::html::table;
use super::{Cell, Table};

/// Hosts, devices, versions, notes.
pub fn hosts(results: &Results) -> Markup {
    let header = &results.header;
    html! {
        @for note in &header.notes { p.note { (note) } }
        @if let Some(note) = &header.peer_note { p.note { "What “peer” means here: " (note) } }
        div.hosts {
            (host("Host of the requester", &header.host))
            @if let Some(peer) = &header.peer { (host("Host of the responder", peer)) }
        }
    }
}

fn host(heading: &str, host: &Host) -> Markup {
    let device = &host.device;
    let gbps = if device.gbps > 0.0 { format!("{} Gbit/s", number(device.gbps)) } else { "rate not known".to_owned() };
    let node = |node: Option<u32>| node.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let pinned: Vec<String> = host
        .pinned
        .iter()
        .map(|(role, cpu)| {
            format!("{role}: {}", cpu.map_or_else(|| "not pinned".to_owned(), |cpu| format!("CPU {cpu}")))
        })
        .collect();
    let rows = [
        ("Name", host.name.clone()),
        ("CPU", host.cpu.clone()),
        ("CPUs, NUMA nodes", format!("{}, {}", host.cpus, host.nodes)),
        ("Memory", format!("{} GiB", number(host.memory as f64 / f64::from(1 << 30)))),
        ("Kernel", host.kernel.clone()),
        ("Frequency governor", host.governor.clone().unwrap_or_else(|| "none shown".to_owned())),
        ("libibverbs", host.library.clone()),
        ("Device", format!("{}, port {}, firmware {}", device.name, device.port, device.firmware)),
        ("Vendor, part", format!("{:#06x}, {}", device.vendor, device.part)),
        ("Port", format!("{}, {gbps}, MTU {}", device.link_layer, device.mtu)),
        ("Reads and atomics under way", device.max_rd_atomic.to_string()),
        ("NUMA node of the device", node(device.node)),
        ("GPU measured", host.gpu.clone().unwrap_or_else(|| "none".to_owned())),
        ("Pinned", if pinned.is_empty() { "nothing".to_owned() } else { pinned.join(", ") }),
    ];
    html! {
        section.host {
            h3 { (heading) }
            dl { @for (name, value) in rows { dt { (name) } dd { (value) } } }
        }
    }
}

/// The machine's own figures of each round; None if none were taken.
pub fn raw(results: &Results) -> Option<Markup> {
    if results.raw.is_empty() {
        return None;
    }
    let mut blocks: Vec<u64> = results.raw.iter().flat_map(|r| r.memcpy.iter().map(|(block, _)| *block)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let mut figures = Table::new(&["round", "cache line from CPU to CPU (ns)", "clock (ns)"]);
    figures.columns.extend(blocks.iter().map(|block| format!("memcpy of {} (MB/s)", bytes(*block))));
    for RawFigures { round, cross_core_ns, memcpy, clock_ns } in &results.raw {
        let copy = |block: &u64| memcpy.iter().find(|(b, _)| b == block).map(|(_, rate)| rate / 1e6);
        let mut cells = vec![Cell::Count(u64::from(*round) + 1), Cell::maybe(*cross_core_ns), Cell::Number(*clock_ns)];
        cells.extend(blocks.iter().map(|block| Cell::maybe(copy(block))));
        figures.push(cells);
    }
    Some(html! {
        p {
            "What this machine does without the device, measured in each round: no link through memory can be \
                faster. If these differ from round to round, so will the values above. Reading the clock is part \
                of every latency."
        }
        div.scroll { (table(&figures)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::sample::nothing;

    #[test]
    fn names_are_escaped_and_unknowns_are_words() {
        let mut results = nothing();
        results.header.host.device.gbps = 0.0;
        let text = hosts(&results).into_string();
        assert!(text.contains("Sample CPU &lt;9000&gt; &amp; friends") && text.contains("rate not known"), "{text}");
        assert!(text.contains("background client: not pinned, client: CPU 0"), "{text}");
    }

    #[test]
    fn a_round_without_a_figure_has_a_dash() {
        let text = raw(&nothing()).expect("figures").into_string();
        assert_eq!(text.matches("–").count(), 1, "{text}");
        assert!(text.contains("memcpy of 4 KiB (MB/s)") && text.contains("40,000"), "{text}");
    }
}
