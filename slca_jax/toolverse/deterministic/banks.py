"""Words that records are made of, by what a field is called; who belongs together stands at one place of two banks."""

PLACES = (
  ('Lisbon', 'Portugal', 38.72, -9.14), ('Oslo', 'Norway', 59.91, 10.75), ('Kyoto', 'Japan', 35.01, 135.77),
  ('Nairobi', 'Kenya', -1.29, 36.82), ('Denver', 'United States', 39.74, -104.99), ('Lima', 'Peru', -12.05, -77.04),
  ('Hanoi', 'Vietnam', 21.03, 105.85), ('Porto', 'Portugal', 41.15, -8.61),
)  # fmt: skip
FIRST_NAMES = (
  'Mara', 'Tomas', 'Priya', 'Elena', 'Jonas', 'Aiko', 'Samir', 'Ines', 'Oskar', 'Noor', 'Kofi', 'Lucia',
)  # fmt: skip
LAST_NAMES = (
  'Lindqvist', 'Okafor', 'Raman', 'Duarte', 'Weber', 'Tanaka', 'Haddad', 'Moreau', 'Novak', 'Castro', 'Bakker', 'Silva',
)  # fmt: skip
TOPICS = (
  'solar storage', 'river restoration', 'night trains', 'urban gardens', 'coral reefs', 'paper batteries',
  'winter cycling',
  'tidal power', 'old harbours', 'quiet engines', 'desert farming', 'glass recycling',
)  # fmt: skip
ADJECTIVES = (
  'Amber',
  'Northern',
  'Silent',
  'Copper',
  'Golden',
  'Misty',
  'Crimson',
  'Hidden',
  'Lunar',
  'Velvet',
  'Rapid',
  'Ivory',
)
NOUNS = (
  'Harbour',
  'Falcon',
  'Meadow',
  'Summit',
  'Lantern',
  'Orchid',
  'Beacon',
  'Canyon',
  'Willow',
  'Comet',
  'Anchor',
  'Prairie',
)
_COINS = ('bitcoin', 'ethereum', 'solana', 'cardano', 'polkadot', 'litecoin', 'avalanche', 'chainlink')
BANKS: dict[str, tuple[str, ...]] = {
  'symbol': ('AAPL', 'MSFT', 'NVDA', 'TSLA', 'AMZN', 'GOOGL', 'META', 'NFLX'),
  'coin': _COINS, 'token': _COINS, 'cryptocurrency': _COINS,
  'city': tuple(place[0] for place in PLACES), 'location': tuple(place[0] for place in PLACES),
  'place': tuple(place[0] for place in PLACES), 'destination': tuple(place[0] for place in PLACES),
  'country': tuple(place[1] for place in PLACES), 'region': ('Europe', 'Asia', 'Africa', 'Americas', 'Oceania'),
  'state': ('CA', 'NY', 'TX', 'WA', 'FL', 'CO', 'OR', 'MA'), 'area': ('north', 'south', 'east', 'west', 'centre'),
  'language': ('en', 'es', 'fr', 'de', 'ja'), 'currency': ('USD', 'EUR', 'JPY', 'GBP', 'BRL'),
  'category': ('science', 'travel', 'culture', 'energy', 'health'), 'genre': ('drama', 'comedy', 'mystery',
  'documentary', 'jazz'),
  'type': ('standard', 'premium', 'basic', 'extended', 'trial'), 'tag': ('energy', 'nature', 'design', 'history',
  'sound'),
  'status': ('active', 'open', 'pending', 'active', 'open'), 'priority': ('high', 'medium', 'low', 'medium', 'high'),
  'severity': ('moderate', 'severe', 'minor', 'extreme', 'moderate'), 'condition': ('sunny', 'cloudy', 'light rain',
  'windy', 'snow'),
  'source': ('The Harbour Times', 'Morning Ledger', 'Open Science Weekly', 'City Courier', 'Field Notes'),
  'team': ('Falcons', 'Mariners', 'Comets', 'Foxes', 'Rangers'), 'position': ('forward', 'guard', 'keeper',
  'midfielder', 'captain'),
  'level': ('info', 'warning', 'error', 'info', 'debug'), 'network': ('mainnet', 'testnet', 'devnet', 'goerli',
  'sepolia'),
  'domain': ('harbour.example', 'meadow.example', 'falcon.example', 'beacon.example', 'comet.example'),
  'version': ('1.4.2', '2.0.0', '0.9.7', '3.1.1', '2.3.5'), 'journal': ('Open Energy Letters', 'Annals of Rivers',
  'Urban Studies Review'),
  'metric': ('visits', 'response_time', 'error_rate', 'conversion', 'uptime'), 'color': ('red', 'teal', 'amber',
  'indigo', 'olive'),
  'word': ('lantern', 'harbour', 'meadow', 'orchid', 'summit', 'comet', 'anchor', 'willow'),
  'exchange': ('binance', 'kraken', 'coinbase', 'okx', 'bitstamp'), 'chain': ('ethereum', 'polygon', 'arbitrum',
  'base', 'optimism'),
  'period': ('1mo', '3mo', '6mo', '1y'), 'interval': ('1d', '1wk', '1mo', '1h'), 'timeframe': ('1d', '1h', '4h', '1w'),
  'quarter': ('Q1', 'Q2', 'Q3', 'Q4'), 'breed': ('akita', 'beagle', 'collie', 'husky', 'poodle'),
}  # fmt: skip
TICKERS = ('BTC', 'ETH', 'SOL', 'ADA', 'DOT', 'LTC', 'AVAX', 'LINK')  # of the coins, in their order
