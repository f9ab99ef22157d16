//! The unmodified programs of Debian's infiniband-diags: what they read in sysfs about the device, and those that need more
//! than that.

use std::time::Duration;

use vervain_tests::pairs::words;
use vervain_tests::{Job, have, under_vervain};

const LIMIT: Duration = Duration::from_secs(30);
const INFINIBAND: &[(&str, &str)] = &[("VERVAIN_LINK_LAYER", "infiniband")];

#[test]
fn ibstat_and_ibstatus_print_what_the_device_says() {
    if !have(&["ibstat", "ibstatus"]) {
        return;
    }
    let vars = [("VERVAIN_PORTS", "2"), ("VERVAIN_DEVICES", "2"), ("VERVAIN_LINK_LAYER", "infiniband")];
    for (tool, device, fields) in [
        (
            "ibstat",
            "vervain1",
            &["CA 'vervain1'", "CA type: Vervain", "Number of ports: 2", "Hardware version: 0", "State: Active"][..],
        ),
        (
            "ibstatus",
            "vervain1:2",
            &["device 'vervain1' port 2", "state: 4: ACTIVE", "rate: 100 Gb/sec (4X EDR)", "link_layer: InfiniBand"],
        ),
        // Without a name ibstatus enters the directory of the devices.
        ("ibstatus", "", &["device 'vervain0' port 1", "device 'vervain1' port 2", "phys state: 5: LinkUp"]),
    ] {
        let mut command = under_vervain(tool);
        let run = Job::start(command.args(words(device)).envs(vars)).finish(LIMIT);
        let plain = words(&run.output).join(" ");
        assert!(run.success() && fields.iter().all(|f| plain.contains(f)), "{fields:?}: {}", run.describe());
    }
}

#[test]
fn ibstat_lists_devices_ports_and_the_link_layer() {
    if !have(&["ibstat"]) {
        return;
    }
    let vars = [("VERVAIN_PORTS", "2"), ("VERVAIN_DEVICES", "2")];
    let ibstat = |args: &str| {
        let run = Job::start(under_vervain("ibstat").args(words(args)).envs(vars)).finish(LIMIT);
        assert!(run.success(), "{}", run.describe());
        run.output
    };
    assert_eq!(words(&ibstat("-l")), ["vervain0", "vervain1"]);
    // The second half of each port's first GID.
    let guids = words(&ibstat("-p"));
    assert!(guids.len() == 4 && guids.iter().all(|g| g.starts_with("0x") && g.len() == 18), "{guids:?}");
    assert!(!ibstat("-s").contains("State:"));
    let port = ibstat("vervain1 2");
    assert!(port.contains("Link layer: Ethernet") && port.contains("Physical state: LinkUp"), "{port}");
}

#[test]
fn programs_that_speak_to_the_fabrics_manager_say_what_is_missing() {
    let tools = ["ibaddr", "perfquery", "sminfo", "smpquery nodeinfo 1", "ibnetdiscover", "iblinkinfo", "saquery"];
    for line in tools {
        let [tool, args @ ..] = &words(line)[..] else { continue };
        if !have(&[tool]) {
            continue;
        }
        let run = Job::start(under_vervain(tool).args(args).envs(INFINIBAND.iter().copied())).finish(LIMIT);
        // By themselves, not by a signal, and in words.
        let clean = run.code().is_some_and(|code| code != 0);
        assert!(clean && run.output.contains("is ib_umad module loaded?"), "{}", run.describe());
    }
}
