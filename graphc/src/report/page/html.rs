//! Writes the page as one file: its style, its data, its script.
//!
//! Style and script are the files of `assets`, plain functions without a library, joined into one. The page's policy
//! allows that script alone, by its digest, and nothing from the network. Names reach the document as text nodes
//! only.

use graphc_ir::table::encode_base64;
use sha2::{Digest, Sha256};

use super::Page;

const TEMPLATE: &str = include_str!("assets/page.html");
const STYLE: &str = concat!(include_str!("assets/page.css"), include_str!("assets/charts.css"));

/// The page's script: its files in the order in which they use each other.
const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("assets/dom.js"),
    include_str!("assets/format.js"),
    include_str!("assets/link.js"),
    include_str!("assets/axis.js"),
    include_str!("assets/summary.js"),
    include_str!("assets/difference.js"),
    include_str!("assets/mesh.js"),
    include_str!("assets/layers.js"),
    include_str!("assets/tensor.js"),
    include_str!("assets/graph.js"),
    include_str!("assets/dag.js"),
    include_str!("assets/costs.js"),
    include_str!("assets/roofline.js"),
    include_str!("assets/events.js"),
    include_str!("assets/waits.js"),
    include_str!("assets/event.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/timelines.js"),
    include_str!("assets/memory.js"),
    include_str!("assets/why.js"),
    include_str!("assets/went.js"),
    include_str!("assets/failed.js"),
    include_str!("assets/main.js"),
    "})();\n",
);

/// Writes a page: one file that needs no network and no other file, and whose policy allows neither, nor any script but its own.
pub fn write_html(page: &Page) -> String {
    let data = serde_json::to_string(page).expect("a page has string keys only");
    let plans = page.plans.iter().map(|plan| plan.name.as_str());
    let names: Vec<&str> = plans.chain(page.failed.iter().map(|one| one.name.as_str())).collect();
    let filled = [
        ("{{title}}", escape_text(&names.join(" and "))),
        ("{{style_hash}}", hash_source(STYLE)),
        ("{{script_hash}}", hash_source(SCRIPT)),
        ("{{style}}", STYLE.into()),
        ("{{script}}", SCRIPT.into()),
        ("{{data}}", escape_json(&data)),
    ];
    let mut parts = TEMPLATE;
    let mut result =
        String::with_capacity(data.len() + SCRIPT.len() + STYLE.len() + TEMPLATE.len());
    // From front to back, so that nothing is looked for in what was filled in.
    while let Some((at, (mark, value))) =
        filled.iter().filter_map(|pair| Some((parts.find(pair.0)?, pair))).min_by_key(|&(at, _)| at)
    {
        result.push_str(&parts[..at]);
        result.push_str(value);
        parts = &parts[at + mark.len()..];
    }
    result + parts
}

/// JSON that ends no script and begins no comment, whatever names are in it: the same values in other letters.
fn escape_json(json: &str) -> String {
    let mut result = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                result.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => result.push(c),
        }
    }
    result
}

/// Text between tags.
fn escape_text(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// SHA-256 as a policy has it: base 64.
fn hash_source(source: &str) -> String {
    format!("sha256-{}", encode_base64(&Sha256::digest(source.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_no_script() {
        let name = "</script><script>alert(1)</script><!-- --> & \u{2028}";
        let json = escape_json(&serde_json::to_string(name).expect("JSON"));
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), name);
    }

    /// Colours that stand for something in figures.
    const MEANINGS: [&str; 26] = [
        "s0",
        "s1",
        "s2",
        "s3",
        "p",
        "b",
        "forward",
        "recomputed",
        "backward",
        "update",
        "communication",
        "data",
        "parameter",
        "state",
        "gradient",
        "activation",
        "input",
        "output",
        "intermediate",
        "table",
        "copy",
        "kernel",
        "memory",
        "rank",
        "rank2",
        "wait",
    ];

    /// Colours that are nearer to each other than this look the same.
    const NEAR: f64 = 40.0;

    fn rgb(style: &str, name: &str) -> [f64; 3] {
        let found = style.split_once(&format!("--{name}: #")).expect("a colour").1;
        [0, 2, 4].map(|at| u8::from_str_radix(&found[at..at + 2], 16).expect("a byte").into())
    }

    /// The distance that eyes see, by the mean of red ("redmean", compuphase.com/cmetric.htm).
    fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
        let red = (a[0] + b[0]) / 2.0;
        let [r, g, b] = [0, 1, 2].map(|at| (a[at] - b[at]).powi(2));
        ((2.0 + red / 256.0) * r + 4.0 * g + (2.0 + (255.0 - red) / 256.0) * b).sqrt()
    }

    #[test]
    fn each_colour_means_one_thing() {
        let themes: Vec<&str> = STYLE.split("--bg:").skip(1).take(2).collect();
        for theme in themes {
            for (at, one) in MEANINGS.iter().enumerate() {
                for other in &MEANINGS[at + 1..] {
                    let apart = distance(rgb(theme, one), rgb(theme, other));
                    assert!(apart > NEAR, "{one} and {other} are {apart:.0} apart");
                }
            }
        }
    }

    #[test]
    fn digests_are_those_of_policies() {
        // The empty text's, as every description of such policies has it.
        assert_eq!(hash_source(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }
}
