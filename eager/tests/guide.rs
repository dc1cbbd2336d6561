//! The code of the guide's section on global tensors, compiled and run.

use std::path::Path;

use graphc_eager::Eager;
use graphc_ir::mesh::Placement;
use graphc_runtime::HostTensor;
use graphc_runtime::dist;

type Failure = Box<dyn std::error::Error>;

fn guide() -> Result<(), Failure> {
    let sums = dist::run(2, |group| -> Result<Vec<f32>, Failure> {
        let eager = Eager::new(&group)?;
        let pair = Placement::new(vec![0, 1], vec![2])?;
        let x = eager.randn([4, 5], &pair, &"S(0)".parse()?)?; // each rank holds two rows
        let local = HostTensor::from_f32([2, 5], &[eager.rank() as f32; 10])?;
        let y = eager.from_local(&local, &pair, &"S(0)".parse()?)?; // two of [2, 5] are one of [4, 5]
        let z = (&x + &y.to_global(&pair, &"S(1)".parse()?)?)?; // boxed as is cheapest
        println!("{z}"); // this rank's numbers; sends nothing
        assert_eq!((z.shape(), z.sbp()), (&[4, 5][..], x.sbp()));
        let last = Placement::new(vec![1], vec![1])?;
        let there = z.to_global(&last, &"B".parse()?)?; // to other ranks
        assert_eq!(there.to_local().is_some(), eager.rank() == 1);
        let product = ((2.0 * &x)? - 1.0)?.matmul(&z.transpose(&[1, 0])?)?.relu()?;
        Ok(product.sum(&[0], false)?.to_host()?.to_f32()?) // whole, on all ranks
    })?;
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0].len(), 4);
    Ok(())
}

#[test]
fn the_guides_code_runs() {
    guide().expect("it fits");
}

#[test]
fn the_guides_code_is_that_of_this_file() {
    // Comments stand apart in the guide, and where rustfmt puts them here.
    let lines = |text: &str| -> String {
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
        code.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let section =
        guide.split("\n## ").find(|section| section.starts_with("Global tensors by hand\n"));
    let blocks: Vec<&str> = section.expect("the section").split("```rust\n").skip(1).collect();
    assert_eq!(blocks.len(), 1);
    let code = lines(blocks[0].split("```").next().expect("its end"));
    assert!(
        lines(include_str!("guide.rs")).contains(&code),
        "not in eager/tests/guide.rs:\n{code}"
    );
}
