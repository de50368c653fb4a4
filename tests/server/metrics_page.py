"""Reads a metrics page: {name: {labels: value}} without the labels that are always there."""

from prometheus_client.parser import text_string_to_metric_families


def samples(text):
    page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["engine"] == "0"
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            page.setdefault(sample.name, {})[tuple(sorted(labels.items()))] = sample.value
    return page


def change(before, after):
    """What grew, {name or name/label value: difference}; gauges and times are left out."""
    grown = {}
    for name, values in after.items():
        for labels, value in values.items():
            difference = value - before.get(name, {}).get(labels, 0.0)
            if difference and name.endswith(("_total", "_count")):
                grown["/".join([name, *(v for _, v in labels)])] = difference
    return grown
