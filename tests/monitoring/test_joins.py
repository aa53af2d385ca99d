"""What other exporters know is joined by their labels, as the guide and the dashboards write it."""

import re
from pathlib import Path
from typing import Any

import yaml

from docs.generate import ROOT
from holdfast.monitoring.dashboards import HARDWARE, queries_of
from holdfast.monitoring.table import METRICS
from tests.monitoring.prometheus import ask_promtool, promtool

GPU = "GPU-9a1c2f64-0d3e-5b7a-8c21-4f6e7d8a9b0c"
OURS = 'holdfast_dev_job="run",node="n"'
SERIES = {
    f'DCGM_FI_PROF_SM_ACTIVE{{UUID="{GPU}",gpu="0",Hostname="m1",modelName="H100"}}': 0.6,
    'DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-of-another-job",gpu="1",Hostname="m1"}': 0.1,
    f'holdfast_gpu_info{{{OURS},gpu="0000:3b:00",UUID="{GPU}"}}': 1,
    'node_load1{instance="10.0.0.7:9100"}': 3.5,
    'node_uname_info{instance="10.0.0.7:9100",nodename="m1"}': 1,
    f'holdfast_node_info{{{OURS},machine="m1"}}': 1,
}


def guide() -> list[str]:
    """The queries of the section about other exporters."""
    text = (ROOT / "docs/guides/monitoring.md").read_text()
    section = text.partition("## Beside other exporters")[2].partition("\n## ")[0]
    [block] = re.findall(r"```\n(.*?)```", section, re.S)
    return [" ".join(query.split()) for query in block.split("\n\n")]


def expects(query: str, labels: str, value: float) -> dict[str, Any]:
    samples = [{"labels": f"{{{labels}}}", "value": value}]
    return {"expr": query, "eval_time": "1m", "exp_samples": samples}


@promtool
def test_figures_of_other_exporters_get_the_job_and_the_node(tmp_path: Path) -> None:
    sm, load = guide()
    [panel] = [query for query in queries_of(HARDWARE, "") if query.startswith("DCGM")]
    assert panel == sm
    gpu = f'{OURS},UUID="{GPU}",gpu="0000:3b:00",Hostname="m1",modelName="H100"'
    machine = f'{OURS},machine="m1",nodename="m1"'
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": f"{n}x5"} for key, n in SERIES.items()],
        "promql_expr_test": [expects(sm, gpu, 0.6), expects(load, machine, 3.5)],
    }
    file = tmp_path / "joins.yml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    ask_promtool("test", "rules", file)


def test_the_labels_that_are_joined_by_are_served() -> None:
    assert "UUID" in METRICS["holdfast_gpu_info"].labels
    assert "machine" in METRICS["holdfast_node_info"].labels
