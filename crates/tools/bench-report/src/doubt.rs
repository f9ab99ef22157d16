//! The sentences about a run most of whose values are doubtful, and the remedies.

use vervain_bench::results::{Flag, Results};

/// Rounds that give good intervals.
const GOOD_ROUNDS: u32 = 5;

/// A sentence, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Banner {
    /// The number of doubtful values, and the reasons.
    pub sentence: String,
    /// The remedies, a sentence each.
    pub remedies: Vec<String>,
}

/// The flags and what they say of so many values, in the order in which they are told if they are equally many.
const WORDS: [(Flag, &str); 7] = [
    (Flag::TooFewRounds, "with too few rounds"),
    (Flag::Noisy, "noisy"),
    (Flag::Drifting, "drifting"),
    (Flag::ColdStart, "with a cold start"),
    (Flag::Incomplete, "incomplete"),
    (Flag::InterferencePaused, "with interference that paused"),
    (Flag::Lossy, "with messages lost"),
];

/// None if more than half of the values are sound, or if there are none.
pub fn banner(results: &Results) -> Option<Banner> {
    let flags: Vec<&[Flag]> =
        results.cases.iter().filter_map(|case| Some(case.summary.as_ref()?.flags.as_slice())).collect();
    let (values, doubtful) = (flags.len(), flags.iter().filter(|flags| !flags.is_empty()).count());
    if values == 0 || doubtful * 2 < values {
        return None;
    }
    let count = |flag| flags.iter().filter(|flags| flags.contains(&flag)).count();
    let mut why: Vec<(usize, Flag, &str)> = WORDS.iter().map(|(flag, words)| (count(*flag), *flag, *words)).collect();
    why.retain(|(count, ..)| *count > 0);
    why.sort_by_key(|(count, ..)| std::cmp::Reverse(*count));
    let list = why.iter().map(|(count, _, words)| format!("{count} {words}")).collect::<Vec<_>>().join(", ");
    let sentence = match (doubtful, values) {
        (1, 1) => format!("The only value is doubtful: {list}."),
        _ if doubtful == values => format!("All {values} values are doubtful: {list}."),
        _ => format!("{doubtful} of {values} values are doubtful: {list}."),
    };
    let mut remedies: Vec<String> = Vec::new();
    for remedy in why.iter().flat_map(|(_, flag, _)| remedies_for(*flag, results)) {
        if !remedies.contains(&remedy) {
            remedies.push(remedy);
        }
    }
    Some(Banner { sentence, remedies })
}

fn remedies_for(flag: Flag, results: &Results) -> Vec<String> {
    let header = &results.header;
    let mut remedies = Vec::new();
    let mut say = |text: &str| remedies.push(text.to_owned());
    match flag {
        Flag::TooFewRounds => {
            let rounds =
                if header.rounds < GOOD_ROUNDS { GOOD_ROUNDS } else { header.rounds.saturating_mul(2).min(1000) };
            say(&format!("Measure in more rounds: --rounds {rounds}."));
        }
        Flag::Noisy | Flag::Drifting | Flag::InterferencePaused => {
            say("Measure on a quiet machine: stop what else runs there.");
            // Interfering processes that share a CPU with each other disturb no other process.
            let is_why = |note: &&String| {
                note.contains("share CPU") && (flag == Flag::InterferencePaused || note.starts_with("all processes"))
            };
            if let Some(note) = header.notes.iter().find(is_why) {
                say(&format!("Measure on a machine with more CPUs: {note}."));
            }
            if let Some(governor) = header.host.governor.as_deref().filter(|governor| *governor != "performance") {
                say(&format!("Set the CPU frequency governor to performance; it is {governor}."));
            }
            if header.host.pinned.get("client").is_some_and(Option::is_none) {
                say("Pin the processes: set client and server to \"auto\" under [pinning] in the plan.");
            }
        }
        Flag::ColdStart => say("Warm up for longer: raise warm_up in the plan."),
        Flag::Incomplete => say("Measure what is missing: vervain bench run --resume DIR."),
        Flag::Lossy => say("Lose no messages: lower depth for UC and UD in the plan."),
    }
    remedies
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::sample::{bandwidth, nothing, write_case};

    fn with(flags: &[&[Flag]]) -> Results {
        let mut results = nothing();
        results.header.notes.clear();
        for (i, flags) in flags.iter().enumerate() {
            let mut case = bandwidth(write_case(8 + i as u64), &[1e9; 3]);
            case.summary.as_mut().expect("a summary").flags = flags.to_vec();
            results.cases.push(case);
        }
        results
    }

    #[test]
    fn a_run_whose_values_are_all_doubtful_says_so_and_what_to_do() {
        let few: &[Flag] = &[Flag::TooFewRounds];
        let mut results = with(&[few, &[Flag::Noisy, Flag::TooFewRounds], few]);
        results.header.rounds = 2;
        let said = banner(&results).expect("a banner");
        assert_eq!(said.sentence, "All 3 values are doubtful: 3 with too few rounds, 1 noisy.");
        assert_eq!(
            said.remedies,
            ["Measure in more rounds: --rounds 5.", "Measure on a quiet machine: stop what else runs there."]
        );
        results.header.rounds = 10;
        assert_eq!(banner(&results).expect("a banner").remedies[0], "Measure in more rounds: --rounds 20.");
    }

    #[test]
    fn the_remedies_are_of_this_machine_and_plan() {
        let mut results = with(&[&[Flag::Noisy, Flag::Drifting, Flag::ColdStart, Flag::Incomplete, Flag::Lossy]]);
        results.header.notes =
            vec!["all processes share CPU 0: what is measured is the scheduler's work as well".into()];
        results.header.host.governor = Some("powersave".into());
        results.header.host.pinned.insert("client".into(), None);
        let said = banner(&results).expect("a banner");
        assert_eq!(
            said.sentence,
            "The only value is doubtful: 1 noisy, 1 drifting, 1 with a cold start, 1 incomplete, 1 with messages lost."
        );
        let expected = [
            "Measure on a quiet machine: stop what else runs there.",
            "Measure on a machine with more CPUs: all processes share CPU 0: what is measured is the scheduler's work as \
             well.",
            "Set the CPU frequency governor to performance; it is powersave.",
            "Pin the processes: set client and server to \"auto\" under [pinning] in the plan.",
            "Warm up for longer: raise warm_up in the plan.",
            "Measure what is missing: vervain bench run --resume DIR.",
            "Lose no messages: lower depth for UC and UD in the plan.",
        ];
        assert_eq!(said.remedies, expected);
    }

    #[test]
    fn a_run_of_mostly_sound_values_needs_no_banner() {
        let noisy: &[Flag] = &[Flag::Noisy];
        assert_eq!(banner(&nothing()), None);
        assert_eq!(banner(&with(&[&[], &[], noisy])), None);
        let said = banner(&with(&[&[], noisy, noisy])).expect("a banner");
        assert_eq!(said.sentence, "2 of 3 values are doubtful: 2 noisy.");
    }
}
