"""Pictures in Korean: their labels, part by part."""

import re
from collections.abc import Mapping
from dataclasses import replace

from transduct.drawing.svg import Picture, Text

# What stands between the parts of a label, such as "head 3, bands 41 to 60".
BETWEEN = re.compile(r"(, | \+ |: | \(|\)| ?\d[\d.,]* ?)")
LABELS = {
    # models
    "a Transformer": "Transformer",
    "attention": "어텐션",
    "one vector": "벡터 하나",
    "feed-forward alone": "피드포워드만",
    "with attention": "어텐션 있음",
    "with feed-forward": "피드포워드 있음",
    "without feed-forward": "피드포워드 없음",
    "with residuals": "잔차 연결 있음",
    "without residuals": "잔차 연결 없음",
    "no norm": "정규화 없음",
    "divided": "나눔",
    "not divided": "나누지 않음",
    "pre-trained": "사전 학습",
    "from scratch": "처음부터",
    "made-up sounds": "합성한 소리",
    "recorded digits": "녹음한 숫자",
    "all": "전체",
    "bands": "대역",
    "tags": "품사",
    "none": "없음",
    # parts of a model
    "layer": "층",
    "head": "헤드",
    "heads": "헤드",
    "encoder": "인코더",
    "decoder": "디코더",
    "layers in all": "층 전체",
    "positions": "위치",
    "to": "~",
    "keys": "키",
    "values": "밸류",
    # axes
    "loss": "손실",
    "weight": "가중치",
    "length": "길이",
    "distance in words": "거리(단어)",
    "temperature": "온도",
    "batch": "배치",
    "characters back": "몇 글자 앞",
    "place in the answer": "답에서의 자리",
    "the embedding": "임베딩",
    # titles
    "Reversal": "뒤집기",
    "% of the symbols right": "맞힌 기호(%)",
    "trained on": "학습 길이",
    "A look-up that sharpens": "온도에 따른 검색",
    "weight of the right key": "맞는 키의 가중치",
    "distance to the dictionary": "딕셔너리와의 거리",
    "without warm-up": "웜업 없음",
    "with warm-up": "웜업 있음",
    "learning rate": "학습률",
    "% right": "정확도(%)",
    "Wrong digits": "틀린 숫자",
    "own words before": "자기 출력을 이어 쓸 때",
    "% of digits": "숫자의 비율(%)",
    "all before right": "앞이 모두 맞을 때",
    "the one before wrong": "바로 앞이 틀렸을 때",
    "labels": "레이블 수",
    "pairs": "문장쌍",
    "target": "정답",
    "likeliest next words": "가장 유력한 다음 단어",
    "Drawn most often": "가장 자주 뽑힌 것",
    "One word in two senses": "두 가지 뜻의 같은 낱말",
    "distance of its vectors": "벡터 사이의 거리",
    "Right answers": "맞힌 답",
    "by change of the sentence": "문장을 바꾸었을 때",
    "as it is": "그대로",
    "a word missing": "단어 하나 빠짐",
    "shifted by a word": "한 단어 밀림",
    "two words swapped": "두 단어 바뀜",
    "shuffled": "뒤섞음",
    "same answer": "답이 같음",
    "all sines, then all cosines (July 2020)": "사인 먼저, 그다음 코사인(2020년 7월)",
    "dot products of": "내적:",
    "sin and cos in turn: 128 positions (down) x 512": "사인·코사인 번갈아: 위치 128개(세로) x 512",
    "4 numbers (down) at 32 positions (across)": "수 4개(세로), 위치 32개(가로)",
    "Two to the left of the mark": "표시의 두 칸 왼쪽",
    "places": "자리",
    "layers": "층",
    "Loss on other text": "다른 글의 손실",
    "longest wavelength": "가장 긴 파장",
    "Mean attention by distance": "거리별 평균 어텐션",
    "Sound over time": "시간에 따른 소리",
    "low bands below": "아래가 낮은 대역",
    "and which moment looks at which": "어느 순간이 어느 순간을 보는지",
    "band": "대역",
    "two of its layers on each side": "양쪽에서 두 층씩",
    "Beam search": "빔 서치",
    "beginnings": "후보",
    "One family of models": "Transformer 계열 모델",
    "memory kept for the gradient": "기울기를 위해 남기는 메모리",
    "ms for": "처리 시간(ms):",
    "tokens": "토큰",
    "part by part": "부분을 하나씩 더하며",
    "Loss of the next letter after each part": "부분을 더할 때마다 다음 글자의 손실",
    "Steps until 95% of first words are right": "첫 단어를 95% 맞히기까지의 학습 단계",
    "Share of the gradient at the first word": "첫 단어까지 전달되는 기울기의 비율",
    "Queries with a weight over 0.9": "0.9가 넘는 가중치를 주는 쿼리",
    "What softmax lets through of a gradient": "소프트맥스를 통과하는 기울기",
    "Loss at the end": "마지막 손실",
    "begin": "시작",
    "Each syllable (down) looks at a word (across)": "각 음절(세로)이 보는 단어(가로)",
    "From each place (down) to each (across)": "각 자리(세로)에서 각 자리(가로)로",
    "left out": "뺀 헤드",
    "symbols right": "정확도",
    "places on": "칸 뒤",
    "the best": "가장 좋은 헤드",
    'What "Thinking" takes from each word': "Thinking이 각 단어에서 가져오는 것",
    "the sum is": "합은",
    "word": "단어",
    "softmax": "소프트맥스",
    "What each place sees, and its target (dark)": "각 자리가 보는 것과 정답(진한 칸)",
}


def in_korean(picture: Picture, cells: Mapping[str, str]) -> Picture:
    """The picture with Korean labels. The words of a table's `cells` come first."""
    words = {**LABELS, **cells}

    def told(text: str) -> str:
        whole = words.get(text)
        return whole or "".join(words.get(part, part) for part in BETWEEN.split(text))

    shapes = (replace(s, text=told(s.text)) if isinstance(s, Text) else s for s in picture.shapes)
    return Picture(picture.width, picture.height, tuple(shapes))
