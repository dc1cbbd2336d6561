//! Classes of places along one dim, by the elements of the window that meet the image there.
//!
//! The forward pass asks for places of the result and their sources in the image. The gradient of images is the same with places
//! and sources exchanged.

use graphc_ir::ops::Window;

/// Places that the same elements of the window reach.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlaceClass {
    /// The elements, and how far behind the first one's source each has its own.
    pub taps: Vec<(usize, isize)>,
    /// The places, each with the source of the first element.
    pub places: Vec<(usize, usize)>,
}

/// The places of a result by what they read: sources are rows of the image.
pub(super) fn classify_places(
    window: &Window,
    dim: usize,
    [image, kernel, places]: [usize; 3],
) -> Vec<PlaceClass> {
    group_into_classes(places, |place| {
        let tap = |element| Some((element, window.source_index(dim, place, element, image)?));
        (0..kernel).filter_map(tap).collect()
    })
}

/// The rows of an image by the places that read them: sources are places.
pub(super) fn classify_rows(
    window: &Window,
    dim: usize,
    [image, kernel, places]: [usize; 3],
) -> Vec<PlaceClass> {
    let stride = window.strides[dim];
    group_into_classes(image, |row| {
        let tap = |element| {
            let reach = (row + window.pads[dim]).checked_sub(element * window.dilations[dim])?;
            let place = reach / stride;
            (reach % stride == 0 && place < places).then_some((element, place))
        };
        (0..kernel).filter_map(tap).collect()
    })
}

fn group_into_classes(
    count: usize,
    taps_of: impl Fn(usize) -> Vec<(usize, usize)>,
) -> Vec<PlaceClass> {
    let mut classes: Vec<PlaceClass> = Vec::new();
    for place in 0..count {
        let found = taps_of(place);
        let first = found.first().map_or(0, |&(_, source)| source);
        let behind =
            |&(element, source): &(usize, usize)| (element, source as isize - first as isize);
        let taps: Vec<(usize, isize)> = found.iter().map(behind).collect();
        match classes.iter_mut().find(|class| class.taps == taps) {
            Some(class) => class.places.push((place, first)),
            None => classes.push(PlaceClass { taps, places: vec![(place, first)] }),
        }
    }
    classes
}

/// The places, sources and number of the meetings of one element of the window with the image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WindowMeeting {
    pub place: usize,
    pub source: usize,
    pub count: usize,
}

/// Finds the meetings of each element of the window with the image along a dim of these extents (image, kernel, places).
pub(super) fn find_meetings(
    window: &Window,
    dim: usize,
    [image, kernel, places]: [usize; 3],
) -> Vec<WindowMeeting> {
    let meeting = |element| {
        let source = |place| window.source_index(dim, place, element, image);
        let place = (0..places).find(|&place| source(place).is_some()).unwrap_or(places);
        let count = (place..places).take_while(|&place| source(place).is_some()).count();
        WindowMeeting { place, source: source(place).unwrap_or_default(), count }
    };
    (0..kernel).map(meeting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_by_the_elements_that_meet_the_image() {
        let window = Window { strides: [1; 2], pads: [1; 4], dilations: [1; 2] };
        let classes = classify_places(&window, 0, [5, 3, 5]);
        let taps: Vec<&[(usize, isize)]> = classes.iter().map(|class| &class.taps[..]).collect();
        assert_eq!(taps, [&[(1, 0), (2, 1)][..], &[(0, 0), (1, 1), (2, 2)], &[(0, 0), (1, 1)]]);
        assert_eq!(classes[1].places, [(1, 0), (2, 1), (3, 2)]);
    }

    #[test]
    fn rows_are_told_by_the_places_that_read_them() {
        let window = Window { strides: [2; 2], pads: [0; 4], dilations: [1; 2] };
        let classes = classify_rows(&window, 0, [5, 2, 2]);
        assert_eq!(classes[0], PlaceClass { taps: vec![(0, 0)], places: vec![(0, 0), (2, 1)] });
        assert_eq!(classes[1], PlaceClass { taps: vec![(1, 0)], places: vec![(1, 0), (3, 1)] });
        assert_eq!(classes[2], PlaceClass { taps: vec![], places: vec![(4, 0)] });
    }
}
