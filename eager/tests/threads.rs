//! Eager tensors on ranks that are threads.

use graphc_eager::Eager;
use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_runtime::HostTensor;
use graphc_runtime::dist;

type Failure = Box<dyn std::error::Error>;

fn sbp(text: &str) -> NdSbp {
    text.parse().expect("an SBP")
}

#[test]
fn tensors_of_different_layouts_add_up() {
    let sums = dist::spawn(2, |group| -> Result<_, Failure> {
        let (eager, pair) = (Eager::new(&group)?, Placement::mesh(&[2])?);
        let x = eager.randn([4, 5], &pair, &sbp("S(0)"))?;
        let y = eager.randn([4, 5], &pair, &sbp("S(1)"))?;
        let z = (&x + &y)?;
        println!("{z}");
        assert_eq!(z.shape(), [4, 5]);
        Ok([x, y, z].iter().map(|t| t.to_host()).collect::<Result<Vec<HostTensor>, _>>()?)
    });
    let sums = sums.expect("the ranks agree");
    assert_eq!(sums[0], sums[1]);
    let [x, y, z] = [0, 1, 2].map(|i| sums[0][i].to_f32().expect("f32"));
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    assert_eq!(z, expected);
    assert_ne!(x, y);
}
